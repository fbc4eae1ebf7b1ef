// Exporter: writes a trained model as a Hugging Face directory: files of the source copied byte for
// byte, weights under the same names, shapes, file split and types. One thread; memory is bounded
// by a few chunks, whatever the model.
//
// The directory appears by rename, complete, synced, and read back with every tensor's checksum
// compared; until then an older export at the destination stays as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hf/model_directory.h"
#include "shard/unit_spec.h"

namespace longshore {

// Fills `out` with elements of the parameter from `element_begin` on, fp32. Called in the order of
// the output files, each parameter front to back.
using ParameterReader =
    std::function<void(const std::string& name, int64_t element_begin, std::span<float> out)>;

struct ExportOptions {
  // nullopt: each tensor as in the source; for a source without weights, config.json's type.
  std::optional<DType> dtype;
  // Frozen parameters are the source's bytes. False for a run that began with random weights: then
  // they come from the reader like all others.
  bool frozen_from_source = true;
  // For a source without weights; otherwise the split is the source's.
  Bytes max_file_bytes = 5'000'000'000;
};

struct ExportResult {
  std::vector<std::string> files;  // all that was written, in order
  Bytes bytes = 0;                 // their sum
  int64_t tensors = 0;             // each compared with its checksum after reading back
};

// Writes `destination`. Throws ConfigError when it holds something that is not a model directory,
// or is the source itself; IoError when the disk is too full, before anything is written.
ExportResult export_model(const ModelDirectory& source, const ModelSpec& spec,
                          const std::string& destination, const ParameterReader& read_parameter,
                          const ExportOptions& options = {});

}  // namespace longshore
