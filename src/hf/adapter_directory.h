// AdapterDirectory: an untrusted directory of a LoRA or DoRA adapter as PEFT writes it, opened and
// checked: adapter_config.json and adapter_model.safetensors. Pickle files are refused, and so is
// every setting that would change numbers and is not supported. It keeps the file of the weights
// open. Movable; reading is const and safe from several threads.
//
// Names of tensors are those of the file without "base_model.model.", so that a module has its name
// in the files of the base model: "model.layers.0.self_attn.q_proj.lora_A.weight".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/adapter_values.h"
#include "hf/safetensors_reader.h"

namespace longshore {

// AdapterSettings: the settings of adapter_config.json that Longshore supports. The defaults are
// those of PEFT. Plain value.
struct AdapterSettings {
  int64_t rank = 8;
  double alpha = 8.0;
  bool rslora = false;      // the product is scaled by alpha / sqrt(rank), not by alpha / rank
  bool dora = false;        // each output has a magnitude, "<module>.lora_magnitude_vector"
  bool transposed = false;  // weights of the targets are stored as [inputs, outputs], as in gpt2
  double dropout = 0.0;     // the share of the input of A that training drops
  // A module is a target if its name is an element, or ends with "." and an element. The single
  // element "all-linear" stands for all matrices except the head.
  std::vector<std::string> targets = {};
  // PEFT's target_parameters, matched in the same way: experts ("experts.down_proj") and routers
  // ("gate.weight").
  std::vector<std::string> parameters = {};
  // PEFT's rank_pattern and alpha_pattern, in the order of the file: other ranks and alphas of the
  // modules and parameters whose names a pattern matches first.
  std::vector<PatternNumber> ranks = {}, alphas = {};
  // PEFT's modules_to_save: modules whose name ends with an element are trained in full and stored
  // in the adapter's file.
  std::vector<std::string> trained = {};
  // PEFT's bias. The file has the biases, of a module with an adapter as
  // "<module>.base_layer.bias".
  AdapterBias bias = AdapterBias::kNone;
  // PEFT's ensure_weight_tying: an embedding that is trained in full stays tied to the head, whose
  // copy is in the file too.
  bool tied = false;
  std::string base = {};  // the model: a hub id or a path; may be empty
};

class AdapterDirectory {
 public:
  // `path` is a directory, or the hub id of an adapter in the local Hugging Face cache
  // (hub_cache.h). Throws ConfigError if there is no adapter or its settings are not supported,
  // DataError if a file is damaged or its tensors do not match the settings.
  static AdapterDirectory open(const std::string& path);

  // If adapter_config.json does not list the targets (but has a regular expression, excluded
  // modules or a choice of layers), `targets` lists the modules that the weight file has.
  const AdapterSettings& settings() const { return settings_; }
  // Makes all later reads add to the file's ReadSums.
  void sum_reads() { file_.sum_reads(); }
  const SafetensorsFile& file() const { return file_; }
  // Returns the sorted names of the tensors.
  const std::vector<std::string>& names() const { return names_; }
  bool has(std::string_view name) const;
  // Throws DataError if there is no such tensor, as `read` does.
  const std::vector<int64_t>& shape(std::string_view name) const;
  // Reads elements [begin, begin + out.size()) of a tensor in row-major order, as fp32, exactly.
  void read(std::string_view name, int64_t begin, std::span<float> out) const;

 private:
  AdapterDirectory(AdapterSettings settings, SafetensorsFile file);
  const TensorInfo& tensor(std::string_view name) const;

  AdapterSettings settings_;
  SafetensorsFile file_;
  std::vector<std::string> names_;
};

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";
// The name of the head's copy (AdapterSettings::tied), without kAdapterNamePrefix.
inline constexpr std::string_view kTiedHeadName = "lm_head.weight";
// The prefix of every name in the file of an adapter's weights.
inline constexpr std::string_view kAdapterNamePrefix = "base_model.model.";

// Returns the text of adapter_config.json for these settings, byte for byte as PEFT 0.21.2 writes
// it for a trained adapter of a language model. The order of the targets is kept.
std::string adapter_config_text(const AdapterSettings& settings);

}  // namespace longshore
