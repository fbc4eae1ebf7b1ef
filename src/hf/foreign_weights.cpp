#include "hf/foreign_weights.h"

#include <algorithm>
#include <array>

#include "base/texts.h"
#include "hf/safetensors_header.h"

namespace longshore {
namespace {

constexpr std::string_view kConvert =
    "convert it with transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)";

constexpr std::array<std::string_view, 18> kWeightEndings = {
    ".safetensors", ".bin",    ".pth",       ".pt",  ".ckpt",   ".gguf",
    ".ggml",        ".onnx",   ".h5",        ".npz", ".ot",     ".nemo",
    ".msgpack",     ".tflite", ".onnx_data", ".pkl", ".pickle", ".index.json"};

bool is_pickle(std::string_view name) {
  constexpr std::array<std::string_view, 6> kEndings = {".bin",  ".pth", ".pt",
                                                        ".ckpt", ".pkl", ".pickle"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

bool is_weight_file_name(std::string_view name) {
  return std::any_of(kWeightEndings.begin(), kWeightEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string no_weights_reason(const std::string& directory, const std::vector<std::string>& names) {
  const auto first = [&names](auto&& matches) -> std::string {
    const auto at = std::find_if(names.begin(), names.end(), matches);
    return at == names.end() ? "" : printable(*at);
  };
  const std::string start = directory + ": no model.safetensors";
  const std::string adapter =
      first([](std::string_view name) { return name == "adapter_model.safetensors"; });
  if (!adapter.empty()) {
    return start + ": " + adapter + " is an adapter only; merge it into its base model first";
  }
  const std::string gguf = first([](std::string_view name) { return name.ends_with(".gguf"); });
  if (!gguf.empty()) {
    return start + ": " + gguf + " is GGUF, another layout that is made for inference; take the " +
           "model's original safetensors directory";
  }
  const std::string pickle = first(is_pickle);
  if (!pickle.empty()) {
    return start + ": " + pickle + " is a pickle file, which can run code and is never read; " +
           std::string(kConvert);
  }
  const std::string other = first(
      [](std::string_view name) { return is_weight_file_name(name) && !name.ends_with(".json"); });
  if (!other.empty()) {
    return start + ": " + other + " is in a layout that is not read; " + std::string(kConvert);
  }
  return start + " and no model.safetensors.index.json; fetch the weights, or set model.init = " +
         "\"random\"";
}

}  // namespace longshore
