// ExportPlan: every weight file of an export as data: which tensors, in which type, and where the
// values come from. Made by one function, carried out by the exporter. Plain values.
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
  // nullopt: each tensor as in the source; for a source without weights, config.json's type.
  std::optional<DType> dtype = std::nullopt;
  // The run began with the source's weights: frozen parameters are the source's bytes. False for
  // a run that began with random weights: all values come from the reader.
  bool pretrained = true;
  // For a source without weights, or in MXFP4; otherwise the split is the source's.
  Bytes max_file_bytes = 5'000'000'000;
  // Tensors of the source that hold a parameter's values once more (a tied head that is stored),
  // and that parameter: they are written with its new values.
  std::map<std::string, std::string> copies = {};
  // Values that are NaN or infinite are refused unless told.
  bool allow_nonfinite = false;
  // README.md of the export; the source's own becomes BASE_README.md. Empty: the source's is
  // copied.
  std::string card = {};
  // Files of the export by name, with their text, in place of the source's or beside them; and
  // files of the source that the export does without.
  std::map<std::string, std::string> texts = {};
  std::set<std::string> left_out = {};
};

struct ExportTensor {
  enum class Values : uint8_t {
    kReader,       // trained: from the ParameterReader
    kSourceBytes,  // untouched: the source's bytes
    kSource,       // untouched, but stored otherwise: the source's values
  };
  SafetensorsWriter::Tensor target;
  std::string parameter = {};  // of kReader: whose values
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
  std::optional<DType> config_dtype;  // what config.json must name now; nullopt: as it is
  bool unquantised = false;           // config.json names a quantisation that is no more
  std::string card;                   // as in the options, as are the next two
  std::map<std::string, std::string> texts;
  std::set<std::string> left_out;
  Bytes tensor_bytes = 0;
};

// `source` must outlive the plan. Throws DataError where the source's weights are not those of a
// pretrained model of this spec.
ExportPlan plan_export(const ModelDirectory& source, const ModelSpec& spec,
                       const ExportOptions& options);

}  // namespace longshore
