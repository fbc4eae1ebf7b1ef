// ModelDirectory: a Hugging Face model directory of unknown origin, opened and checked:
// config.json, generation_config.json and the weights (one safetensors file, or several and their
// index). Pickle and GGUF weights and quantised models are refused; gpt_oss's MXFP4 is read as the
// parameters that it stands for. Keeps the weight files open.
// Reading is const and safe from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "hf/mxfp4.h"
#include "hf/safetensors_reader.h"

namespace longshore {

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
    const Mxfp4Tensor* packed = nullptr;  // where the values lie, if not in the tensor's place
    explicit operator bool() const { return tensor != nullptr; }
  };

  // `path`: a directory, or the hub id of a model in Hugging Face's local cache (hub_cache.h).
  // Throws ConfigError where the directory or its config.json cannot be used, DataError where a
  // weight file or the index is damaged. kOptional: for models that start from random weights.
  static ModelDirectory open(const std::string& path, Weights weights = Weights::kRequired);

  const std::string& path() const { return fd_.path(); }
  // "<path>/<name>".
  std::string path_of(std::string_view name) const { return path() + "/" + std::string(name); }

  const Json& config() const { return config_; }
  const std::string& config_text() const { return config_text_; }
  // nullptr when there is no generation_config.json.
  const Json* generation_config() const {
    return generation_config_ ? &*generation_config_ : nullptr;
  }

  // In the order of their names.
  const std::vector<std::unique_ptr<WeightFile>>& files() const { return files_; }
  // The text of model.safetensors.index.json; empty when the directory has none.
  const std::string& index_text() const { return index_text_; }
  // metadata.total_size of the index.
  std::optional<Bytes> index_total_size() const { return index_total_size_; }
  // Every tensor, file by file, in the order of their bytes. Two of MXFP4 are one, the parameter
  // that they stand for.
  const std::vector<TensorRef>& tensors() const { return tensors_; }
  // A null TensorRef when there is none.
  TensorRef find(std::string_view name) const;
  // A tensor of the files under its name there; a null TensorRef when there is none.
  TensorRef find_stored(std::string_view name) const;
  // Whether config.json says that weights are in MXFP4.
  bool mxfp4() const { return mxfp4_; }
  // True when two tensors have the same type, shape and bytes (a tied head that is stored twice).
  bool same_bytes(const TensorRef& a, const TensorRef& b) const;
  // Sum of all tensors' bytes.
  Bytes weight_bytes() const { return weight_bytes_; }

  // The files beside the weights: config.json, tokenizer, templates, licence and so on, sorted;
  // those of additional_chat_templates/ with that prefix. Weights in any format are not among them.
  const std::vector<std::string>& companion_files() const { return companion_files_; }
  UniqueFd open_companion(const std::string& name) const;

  // What is odd but does no harm, one line each.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // xxh3 over config.json and the weight files' names, sizes and headers; not over the values.
  // 16 hex digits.
  std::string fingerprint() const;

 private:
  ModelDirectory() = default;
  void read_configs();
  void check_quantisation();
  void open_weights(Weights weights);
  void open_indexed_files();
  void build_table();
  void sort_names();
  void pair_mxfp4();
  void list_companions();

  UniqueFd fd_;
  std::string config_text_;
  Json config_;
  std::optional<Json> generation_config_;
  std::string index_text_;
  std::optional<Bytes> index_total_size_;
  std::vector<std::unique_ptr<WeightFile>> files_;
  std::vector<TensorRef> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  bool mxfp4_ = false;
  std::vector<std::unique_ptr<Mxfp4Tensor>> packed_;
  Bytes weight_bytes_ = 0;
  std::vector<std::string> companion_files_;
  std::vector<std::string> warnings_;
};

}  // namespace longshore
