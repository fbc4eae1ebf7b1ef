// ExportPlan: every weight file of an export as data: tensors, their types and the source of their
// values. plan_export makes it and the exporter executes it. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hf/model_directory.h"
#include "hf/safetensors_writer.h"
#include "shard/unit_spec.h"

namespace longshore {

struct ExportOptions {
  // nullopt: each tensor's type in the source; without source weights, config.json's type.
  std::optional<DType> dtype = std::nullopt;
  // True: the run started from the source's weights, so frozen parameters are the source's bytes.
  // False: it started from random weights, and all values come from the reader.
  bool pretrained = true;
  // For a source without weights or in MXFP4; otherwise the split is the source's.
  Bytes max_file_bytes = 5'000'000'000;
  // Source tensors that store a parameter's values again (a stored tied head), with that parameter;
  // they are written with its new values.
  std::map<std::string, std::string> copies = {};
  // If false, NaN or infinite values are refused.
  bool allow_nonfinite = false;
  // The README.md of the export; the source's becomes BASE_README.md. Empty: the source's is
  // copied.
  std::string card = {};
  // Additional or replaced files of the export by name, with their text; and files of the source
  // that the export omits.
  std::map<std::string, std::string> texts = {};
  std::set<std::string> left_out = {};
};

struct ExportTensor {
  enum class Values : uint8_t {
    kReader,       // trained: from the ParameterReader
    kSourceBytes,  // untouched: the source's bytes
    kSource,       // untouched but stored otherwise: the source's values
  };
  SafetensorsWriter::Tensor target;
  std::string parameter = {};  // for kReader: the parameter
  Values values = Values::kReader;
  ModelDirectory::TensorRef stored;  // null for a source without weights
};

struct ExportFile {
  std::string name;
  SafetensorsMetadata metadata;
  std::vector<ExportTensor> tensors;
  Bytes tensor_bytes = 0;
};

struct ExportPlan {
  std::vector<ExportFile> files;
  std::string index_text;             // empty: no index
  std::optional<DType> config_dtype;  // new type in config.json; nullopt: unchanged
  bool unquantised = false;           // config.json's quantisation no longer applies
  std::string card;                   // these three come from the options
  std::map<std::string, std::string> texts;
  std::set<std::string> left_out;
  Bytes tensor_bytes = 0;
};

// `source` must outlive the plan. Throws DataError if the source's weights do not match a
// pretrained model of this spec.
ExportPlan plan_export(const ModelDirectory& source, const ModelSpec& spec,
                       const ExportOptions& options);

}  // namespace longshore
