// ExportPlan: every weight file of an export as data: tensors, their types and the source of their
// values. plan_export makes it and the exporter executes it. Plain values. ExportList names the
// files that an export wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "hf/model_directory.h"
#include "hf/safetensors_writer.h"
#include "shard/unit_spec.h"

namespace longshore {

// An export of the trained parameters alone, as PEFT writes an adapter.
struct AdapterExport {
  std::string config;  // adapter_config.json
  // The name of each trained parameter in the file, by its name in the model.
  std::map<std::string, std::string> names;
  // Further tensors of the file, with the parameters whose values they hold too.
  std::map<std::string, std::string> copies = {};
};

struct ExportOptions {
  // nullopt: each tensor's type in the source; without source weights, config.json's type.
  std::optional<DType> dtype = std::nullopt;
  // True: the run started from the source's weights, so frozen parameters are the source's bytes.
  // False: it started from random weights, and all values come from the reader.
  bool pretrained = true;
  // The limit of a weight file, for a source without weights or whose packed tensors become bf16;
  // otherwise weights are split into files as in the source.
  Bytes max_file_bytes = 5'000'000'000;
  // Source tensors that store a parameter's values again (a stored tied head), with that parameter;
  // they are written with its new values.
  std::map<std::string, std::string> copies = {};
  // True: trained parameters that the source holds packed are packed again, in its format. False:
  // they are written as bf16, and config.json no longer declares the format.
  bool published = false;
  // If false, NaN or infinite values are refused.
  bool allow_nonfinite = false;
  // The README.md of the export; the source's README.md is then copied to BASE_README.md. Empty:
  // the source's README.md is copied unchanged.
  std::string card = {};
  // The vocab_size of the export's config.json; nullopt: that of the source.
  std::optional<int64_t> vocabulary = std::nullopt;
  // Additional or replaced files of the export by name, with their text; and files of the source
  // that the export omits.
  std::map<std::string, std::string> texts = {};
  std::set<std::string> left_out = {};
  // Called when all files are written and verified; if it throws, the destination stays unchanged.
  std::function<void()> before_publish = [] {};
  // If set, the export is an adapter: one fp32 file of the trained parameters, adapter_config.json,
  // and the files of the tokenizer.
  std::optional<AdapterExport> adapter = std::nullopt;
};

struct ExportTensor {
  enum class Values : uint8_t {
    kReader,       // trained: from the ParameterReader
    kSourceBytes,  // untouched: the source's bytes
    kSource,       // untouched, but stored in another type: the source's values
    kCodes,        // trained, packed again as in the source (hf/repacked_tensor.h): its codes
    kScales,       // the scales that belong to kCodes of the same parameter
  };
  SafetensorsWriter::Tensor target;
  std::string parameter = {};  // for kReader, kCodes and kScales: the parameter
  Values values = Values::kReader;
  // Null for a source without weights; for kCodes and kScales the source's packed tensor.
  ModelDirectory::TensorRef stored;
};

struct ExportFile {
  std::string name;
  SafetensorsMetadata metadata;
  std::vector<ExportTensor> tensors;
  Bytes tensor_bytes = 0;
};

struct ExportPlan {
  std::vector<ExportFile> files;
  bool adapter = false;               // the directory holds an adapter, not a model
  std::string index_text;             // empty: no index
  std::optional<DType> config_dtype;  // new type in config.json; nullopt: unchanged
  bool unquantised = false;           // config.json's quantisation no longer applies
  bool power_scales = false;          // scales of kScales are powers of two
  std::optional<int64_t> vocabulary;  // these four come from the options
  std::string card;
  std::map<std::string, std::string> texts;
  std::set<std::string> left_out;
  Bytes tensor_bytes = 0;
};

// Returns why an export cannot have the form in which the source was published; empty if it can.
// `pretrained` is that of the options.
std::string published_form_problem(const ModelDirectory& source, bool pretrained);

// `source` must outlive the plan. Throws DataError if the source's weights do not match a
// pretrained model of this spec, ConfigError if the options ask for a published form that cannot be
// written.
ExportPlan plan_export(const ModelDirectory& source, const ModelSpec& spec,
                       const ExportOptions& options);

// ExportList: the files that an export wrote, with their hashes, stored in the same directory in
// .longshore-export.json. Only listed and unchanged files belong to this program. Everything else
// in the directory is foreign and is never replaced or removed. Plain functions.

struct ExportedFile {
  Bytes bytes = 0;
  uint64_t hash = 0;  // xxh3 of the whole file
};

struct ExportList {
  // By name; chat templates of the subdirectory are "additional_chat_templates/NAME".
  std::map<std::string, ExportedFile> files;
  std::map<std::string, uint64_t> tensors;  // xxh3 of each tensor's bytes, by name
};

inline constexpr const char* kExportListName = ".longshore-export.json";
inline constexpr const char* kTemplatesFolder = "additional_chat_templates";

void write_export_list(const std::string& directory, const ExportList& list);
// Returns an empty list if the file is missing or unreadable.
ExportList read_export_list(const std::string& directory);

// An exported file at the time of the check; it is removed only if it is still the same.
struct OwnFile {
  std::string name;
  uint64_t device = 0;
  uint64_t inode = 0;
  Bytes bytes = 0;
  int64_t changed_ns = 0;
};

struct ExportContents {
  std::vector<OwnFile> own;          // listed files with unchanged bytes, and the list itself
  std::vector<std::string> foreign;  // other files and links
  std::vector<std::string> folders;  // folders and special files, which no export writes
};

// Reads and hashes every listed file without following links. `directory` must be a directory.
ExportContents read_export_contents(const std::string& directory);

// Removes unchanged files of `own`, files of `linked` that are the same file as in `elsewhere`, and
// then the directory if it is empty. Returns whether the directory is gone.
bool remove_export(const std::string& directory, const std::vector<OwnFile>& own,
                   const std::vector<std::string>& linked, const std::string& elsewhere);

}  // namespace longshore
