// GenerationCase: one file of tests/parity/golden_generation and its model in memory: greedy
// answers of transformers (make_generation_golden.py). Tests own it; any thread.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/models/decoder_model.h"
#include "model/models/packed_model.h"
#include "model/parameters/unit_cut.h"

namespace longshore {

struct GenerationCase {
  struct Answer {
    std::vector<int64_t> prompt;
    std::vector<int64_t> tokens;
    std::vector<double> log_probabilities;  // of the tokens

    // Returns the prompt and all tokens of the answer but the last.
    std::vector<int64_t> text() const;
  };

  const Model& model() const { return packed ? static_cast<const Model&>(*packed) : *plain; }

  std::string name;
  std::map<std::string, at::Tensor> weights;  // values as fp32; packed matrices as their bytes
  std::vector<Answer> answers;
  std::unique_ptr<DecoderModel> plain;
  std::unique_ptr<PackedModel> packed;  // null: nothing is packed
};

// Returns the sorted names of the files.
std::vector<std::string> generation_case_names();
// `compute` is the dtype of the values that a packed model computes with; `policy` cuts units.
GenerationCase read_generation_case(const std::string& name, DType compute,
                                    const UnitPolicy& policy = {});

}  // namespace longshore
