// GoldenCase: one directory of tests/parity/golden in memory, read with little code.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/models/decoder_model.h"
#include "model/parameters/model_spec.h"
#include "tests/fakes/sketch.h"

namespace longshore {

struct GoldenRow {
  std::vector<int64_t> tokens;
  std::vector<int64_t> targets;  // shifted: the token to predict at each position, or -100
};

struct GoldenCase {
  std::string name;
  Json config;
  ArchSpec arch;
  std::map<std::string, at::Tensor> weights;  // stored values as fp32
  std::map<std::string, Sketch> golden;       // golden_sketches.json
  Json facts;                                 // golden.json
  std::vector<GoldenRow> rows;                // train.jsonl

  std::vector<FileTensor> file_tensors() const;
};

// Returns the sorted names of the directories under tests/parity/golden.
std::vector<std::string> golden_case_names();
GoldenCase read_golden_case(const std::string& name);
// Returns the tensors of a safetensors file of fp32 or bf16 values, as fp32.
std::map<std::string, at::Tensor> read_golden_tensors(const std::string& path);
// Returns the rows of a file of token ids.
std::vector<GoldenRow> read_golden_rows(const std::string& path);

}  // namespace longshore
