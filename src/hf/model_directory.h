// ModelDirectory: an untrusted Hugging Face model directory, opened and checked: config.json,
// generation_config.json and the weights (one safetensors file, or several with an index). Pickle,
// GGUF and quantised weights are refused; block-scaled fp8, bitsandbytes' NF4, and gpt_oss's MXFP4,
// are read as bf16 parameters. It keeps the weight files open. Reading is const and safe from
// several threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "hf/packed_tensor.h"
#include "hf/quantisation.h"
#include "hf/safetensors_reader.h"
#include "hf/weight_index.h"

namespace longshore {

// Companion files up to this size, and up to this total, are kept in memory, so that an export
// contains them as they were when the model was read.
inline constexpr Bytes kMaxKeptCompanion = 4 * kMiB;
inline constexpr Bytes kMaxKeptCompanions = 32 * kMiB;

class ModelDirectory {
 public:
  enum class Weights : uint8_t { kRequired, kOptional };
  struct WeightFile {
    std::string name;  // in the directory
    SafetensorsFile file;
  };
  struct TensorRef {
    const WeightFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
    const PackedTensor* packed = nullptr;  // set if the values are packed
    explicit operator bool() const { return tensor != nullptr; }
  };

  // `path` is a directory, or the hub id of a model in the local Hugging Face cache (hub_cache.h).
  // Throws ConfigError if the directory or its config.json is unusable, DataError if a weight file
  // or the index is damaged. kOptional is for models that start from random weights; for
  // `mxfp4_families` see read_quantisation.
  static ModelDirectory open(const std::string& path, Weights weights = Weights::kRequired,
                             std::span<const std::string> mxfp4_families = {});

  const std::string& path() const { return fd_.path(); }
  // Returns "<path>/<name>".
  std::string path_of(std::string_view name) const { return path() + "/" + std::string(name); }

  // config() and config_text() lack the keys that declare a quantisation if the weights are not
  // quantised.
  const Json& config() const { return config_; }
  const std::string& config_text() const { return config_text_; }
  // Returns nullptr without a generation_config.json.
  const Json* generation_config() const {
    return generation_config_ ? &*generation_config_ : nullptr;
  }

  // Makes all later reads of the files add to their ReadSums (SafetensorsFile::sum_reads).
  void sum_reads();
  // The files are sorted by name.
  const std::vector<std::unique_ptr<WeightFile>>& files() const { return files_; }
  // Returns the text of model.safetensors.index.json, without tensors that no file has; empty
  // without an index.
  const std::string& index_text() const { return index_text_; }
  // Returns metadata.total_size of the index.
  std::optional<Bytes> index_total_size() const { return index_total_size_; }
  // Returns all tensors, file by file, in byte order. A packed one and its scales count as one.
  const std::vector<TensorRef>& tensors() const { return tensors_; }
  // Returns a null TensorRef if there is none.
  TensorRef find(std::string_view name) const;
  // Finds a tensor by its name in the files; a null TensorRef if there is none.
  TensorRef find_stored(std::string_view name) const;
  // Returns the quantisation of the weights that config.json declares.
  Quantisation quantisation() const { return quantisation_; }
  bool quantised() const { return quantisation_ != Quantisation::kNone; }
  // Returns whether two tensors have equal type, shape and bytes (a tied head stored twice). Packed
  // tensors are never equal.
  bool same_bytes(const TensorRef& a, const TensorRef& b) const;
  // Returns the sum of all tensors' bytes.
  Bytes weight_bytes() const { return weight_bytes_; }

  // Returns the sorted files other than weights: config.json, tokenizer, templates, licence and so
  // on; those of additional_chat_templates/ have that prefix. Weights of any format are excluded.
  const std::vector<std::string>& companion_files() const { return companion_files_; }
  // Returns the text of a companion as it was when the directory was opened; nullptr for a file of
  // more than kMaxKeptCompanion.
  const std::string* companion_text(const std::string& name) const;
  // Opens a companion. Throws DataError if it was removed or replaced since the directory was
  // opened.
  UniqueFd open_companion(const std::string& name) const;

  // Returns harmless oddities, one line each, for a check of the model.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Returns statements of the files that neither a run nor its export follows, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  // Returns the note about tensors that the index lists and no file has; empty if there are none.
  const std::string& absent_note() const { return absent_note_; }
  // Returns 16 hex digits: xxh3 over config.json and the weight files' names, sizes and headers,
  // without the values.
  std::string fingerprint() const;

 private:
  ModelDirectory() = default;
  void read_configs();
  void resolve_quantisation(std::span<const std::string> mxfp4_families);
  void open_weights(Weights weights);
  void open_indexed_files();
  void check_index(const WeightIndex& index);
  // `file_name` is one of files().
  const TensorInfo* find_in_file(std::string_view file_name, std::string_view name) const;
  void leave_out_absent(const std::map<std::string, std::string>& absent);
  void build_table(std::span<const std::string> mxfp4_families);
  void sort_names();
  void pair_packed();
  void check_packed() const;
  void list_companions();
  void keep_companion(const std::string& name, const UniqueFd& fd);
  UniqueFd open_named(const std::string& name) const;

  UniqueFd fd_;
  std::string config_text_;
  Json config_;
  std::optional<Json> generation_config_;
  std::string index_text_;
  std::optional<Bytes> index_total_size_;
  std::vector<std::unique_ptr<WeightFile>> files_;
  std::vector<TensorRef> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  Quantisation quantisation_ = Quantisation::kNone;
  std::vector<std::unique_ptr<PackedTensor>> packed_;
  Bytes weight_bytes_ = 0;
  std::vector<std::string> companion_files_;
  std::map<std::string, std::string> companion_texts_;    // of small ones, by name
  std::map<std::string, FileIdentity> companion_states_;  // of large ones
  Bytes kept_bytes_ = 0;
  std::vector<std::string> warnings_;
  std::vector<std::string> notes_;
  std::string absent_note_;
};

}  // namespace longshore
