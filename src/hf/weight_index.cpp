#include "hf/weight_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

#include "base/errors.h"
#include "base/json.h"
#include "base/texts.h"
#include "hf/adapter_directory.h"
#include "hf/directory_entry.h"
#include "hf/problem_list.h"
#include "hf/safetensors_header.h"

namespace longshore {
namespace {

// The largest public models have about 200,000 tensors; each value costs about 300 bytes.
constexpr JsonLimits kIndexLimits = {
    .max_bytes = kMaxIndexBytes, .max_depth = 8, .max_values = 500'000};

void check_file_name(const std::string& tensor, const std::string& file, const std::string& origin,
                     ProblemList& problems) {
  const std::string where = origin + ": weight_map: tensor '" + printable(tensor) + "': ";
  if (!is_plain_file_name(file)) {
    problems.add(where + "'" + printable(file) + "' is not a plain file name");
  } else if (!file.ends_with(".safetensors")) {
    problems.add(where + "'" + printable(file) + "' is no .safetensors file");
  }
}

// Some writers store a real. Other values are ignored, because they do no harm.
std::optional<Bytes> read_total_size(const Json& root) {
  const auto metadata = root.find("metadata");
  if (metadata == root.end() || !metadata->is_object()) return std::nullopt;
  const auto total = metadata->find("total_size");
  if (total == metadata->end()) return std::nullopt;
  if (total->is_number_unsigned()) {
    const auto value = total->get<uint64_t>();
    if (value <= static_cast<uint64_t>(INT64_MAX)) return static_cast<Bytes>(value);
  }
  if (total->is_number_float()) {
    const auto value = total->get<double>();
    if (value >= 0 && value < 9e15 && value == std::floor(value)) return static_cast<Bytes>(value);
  }
  return std::nullopt;
}

constexpr std::string_view kConvert =
    "convert it with transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)";

constexpr std::array<std::string_view, 18> kWeightEndings = {
    ".safetensors", ".bin",    ".pth",       ".pt",  ".ckpt",   ".gguf",
    ".ggml",        ".onnx",   ".h5",        ".npz", ".ot",     ".nemo",
    ".msgpack",     ".tflite", ".onnx_data", ".pkl", ".pickle", ".index.json"};

constexpr std::array<std::string_view, 5> kBackupEndings = {".bak", ".backup", ".old", ".orig",
                                                            "~"};

// Settings and statistics of quantisers, Mistral's own configuration of consolidated.safetensors,
// and the state of transformers' Trainer.
constexpr std::array<std::string_view, 6> kWeightDescriptions = {
    "imatrix.dat",       "params.json",          "trainer_state.json",
    "quant_config.json", "hf_quant_config.json", "quantize_config.json"};

// The state of a training run, which no program loads as a model.
constexpr std::array<std::string_view, 5> kTrainerStates = {"training_args.", "optimizer.",
                                                            "scheduler.", "scaler.", "rng_state"};

bool ends_with_one_of(std::string_view name, std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_pickle(std::string_view name) {
  constexpr std::array<std::string_view, 6> kEndings = {".bin",  ".pth", ".pt",
                                                        ".ckpt", ".pkl", ".pickle"};
  return ends_with_one_of(name, kEndings);
}

}  // namespace

WeightIndex parse_weight_index(std::string_view text, const std::string& origin) {
  const Json root = parse_json(text, kIndexLimits, origin);
  if (!root.is_object()) throw DataError(origin + ": not a JSON object");
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object() || map->empty()) {
    throw DataError(origin + ": weight_map is missing, empty or not an object");
  }
  WeightIndex index;
  ProblemList problems;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      problems.add(origin + ": weight_map: tensor '" + printable(tensor) +
                   "': expected a file name, found " + file.type_name());
      continue;
    }
    const auto& name = file.get_ref<const std::string&>();
    check_file_name(tensor, name, origin, problems);
    index.tensors_of_file[name].push_back(tensor);
  }
  problems.throw_if_any();
  if (static_cast<int64_t>(index.tensors_of_file.size()) > kMaxWeightFiles) {
    throw DataError(origin + ": weight_map: more than " + std::to_string(kMaxWeightFiles) +
                    " files");
  }
  for (auto& [file, tensors] : index.tensors_of_file) std::sort(tensors.begin(), tensors.end());
  index.total_size = read_total_size(root);
  return index;
}

std::string format_weight_index(const WeightIndex& index) {
  std::map<std::string, std::string> file_of_tensor;
  for (const auto& [file, tensors] : index.tensors_of_file) {
    for (const std::string& tensor : tensors) file_of_tensor[tensor] = file;
  }
  Json weight_map = Json::object();
  Json::object_t::Container& members = weight_map.get_ref<Json::object_t&>();
  for (const auto& [tensor, file] : file_of_tensor) members.emplace_back(tensor, file);
  Json root = {{"metadata", {{"total_size", index.total_size.value_or(0)}}}};
  root["weight_map"] = std::move(weight_map);
  return root.dump(2) + "\n";
}

std::string with_total_size(std::string_view text, Bytes total_size) {
  Json root = parse_json(text, kIndexLimits, std::string(kWeightIndexName));
  root["metadata"]["total_size"] = total_size;
  return root.dump(2) + "\n";
}

std::string without_tensors(std::string_view text, const std::vector<std::string>& names) {
  Json root = parse_json(text, kIndexLimits, std::string(kWeightIndexName));
  const std::set<std::string_view> left_out(names.begin(), names.end());
  Json kept = Json::object();
  Json::object_t::Container& members = kept.get_ref<Json::object_t&>();
  for (const auto& [tensor, file] : root.at("weight_map").items()) {
    if (!left_out.contains(tensor)) members.emplace_back(tensor, file);
  }
  root["weight_map"] = std::move(kept);
  return root.dump(2) + "\n";
}

bool is_weight_file_name(std::string_view name) {
  if (std::ranges::count(kWeightDescriptions, name) > 0) return true;
  for (const std::string_view ending : kBackupEndings) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
  }
  return ends_with_one_of(name, kWeightEndings);
}

bool is_loaded_as_weights(std::string_view name) {
  if (name == kAdapterConfigName) return true;
  const bool state = std::ranges::any_of(
      kTrainerStates, [&](std::string_view start) { return name.starts_with(start); });
  return !state && ends_with_one_of(name, kWeightEndings);
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
  const std::string safetensors =
      first([](std::string_view name) { return name.ends_with(".safetensors"); });
  if (safetensors.starts_with("consolidated")) {
    return start + ": " + safetensors + " has Mistral's own names of tensors; fetch the " +
           "model*.safetensors of the same model";
  }
  if (!safetensors.empty()) {
    return start + " and no " + std::string(kWeightIndexName) + " beside " + safetensors +
           "; fetch that index, or, if " + safetensors + " holds the whole model, rename it to " +
           std::string(kSingleWeightsName);
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
