#include "model/config_reader.h"

#include <sstream>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;

// Keys with these names change a model's numbers in every family, so they must not be ignored.
bool changes_numbers(std::string_view key) {
  for (std::string_view part : {"softcap", "multiplier", "expert"}) {
    if (key.find(part) != std::string_view::npos) return true;
  }
  for (std::string_view whole : {"quantization_config",
                                 "qk_norm",
                                 "use_qk_norm",
                                 "qk_layernorm",
                                 "clip_qkv",
                                 "alibi",
                                 "use_alibi",
                                 "parallel_attn",
                                 "use_parallel_residual",
                                 "no_rope_layers",
                                 "no_rope_layer_interval",
                                 "query_pre_attn_scalar",
                                 "logit_scale",
                                 "scale_emb",
                                 "scale_depth",
                                 "embedding_scale",
                                 "residual_scale",
                                 "kv_lora_rank",
                                 "q_lora_rank",
                                 "first_k_dense_replace"}) {
    if (key == whole) return true;
  }
  return key.ends_with("_scaling") || key.starts_with("moe_") || key.starts_with("router_");
}

// True for the values that mean "off" in files of models without that feature.
bool is_off(const Json& value) {
  return value.is_null() || value == false || value == 0 ||
         (value.is_structured() && value.empty());
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kMost = 60;
  if (text.size() > kMost) {
    text.resize(kMost);
    text += "...";
  }
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const Json& config, std::string path)
    : object_(&config), path_(std::move(path)) {
  if (!config.is_object()) throw ConfigError(path_ + ": not a JSON object");
}

void ConfigReader::problem(std::string_view key, const std::string& what) {
  problems_.push_back(path_ + ": '" + std::string(key) + "' " + what);
}

bool ConfigReader::has(std::string_view key) const {
  return object_->contains(std::string(key));
}

std::string ConfigReader::shown_name(Keys keys) const {
  for (std::string_view key : keys) {
    if (has(key)) return std::string(key);
  }
  return std::string(*keys.begin());
}

const Json* ConfigReader::find(Keys keys) {
  const Json* found = nullptr;
  for (std::string_view key : keys) {
    known_.emplace(key);
    if (found != nullptr) continue;
    const auto it = object_->find(std::string(key));
    if (it != object_->end() && !it->is_null()) found = &*it;
  }
  return found;
}

std::optional<int64_t> ConfigReader::integer(Keys keys, int64_t least, int64_t most) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    problem(shown_name(keys), "must be an integer in " + std::to_string(least) + " .. " +
                                  std::to_string(most) + ", not " + shown(*value));
    return std::nullopt;
  }
  return value->get<int64_t>();
}

std::optional<double> ConfigReader::real(Keys keys, double least, double most) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    std::ostringstream bounds;
    bounds << least << " .. " << most;
    problem(shown_name(keys), "must be a number in " + bounds.str() + ", not " + shown(*value));
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> ConfigReader::boolean(Keys keys) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    problem(shown_name(keys), "must be true or false, not " + shown(*value));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::text(Keys keys) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    problem(shown_name(keys), "must be a string, not " + shown(*value));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::vector<int64_t> ConfigReader::integers(Keys keys, int64_t least, int64_t most) {
  const Json* value = find(keys);
  if (value == nullptr) return {};
  std::vector<int64_t> numbers;
  if (!value->is_array()) {
    const auto one = integer(keys, least, most);
    if (one) numbers.push_back(*one);
    return numbers;
  }
  for (const Json& item : *value) {
    if (!item.is_number_integer() || item.get<int64_t>() < least || item.get<int64_t>() > most) {
      problem(shown_name(keys), "must hold integers in " + std::to_string(least) + " .. " +
                                    std::to_string(most) + ", not " + shown(item));
      return {};
    }
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

std::vector<double> ConfigReader::reals(Keys keys, double least, double most) {
  const Json* value = find(keys);
  if (value == nullptr) return {};
  std::vector<double> numbers;
  for (const Json& item : value->is_array() ? *value : Json::array()) {
    const bool fits = item.is_number() && item.get<double>() >= least && item.get<double>() <= most;
    if (!fits) break;
    numbers.push_back(item.get<double>());
  }
  if (!value->is_array() || numbers.size() != value->size()) {
    std::ostringstream bounds;
    bounds << least << " .. " << most;
    problem(shown_name(keys), "must be a list of numbers in " + bounds.str());
    return {};
  }
  return numbers;
}

std::vector<std::string> ConfigReader::texts(Keys keys) {
  const Json* value = find(keys);
  if (value == nullptr) return {};
  std::vector<std::string> items;
  bool all_text = value->is_array();
  if (all_text) {
    for (const Json& item : *value) all_text = all_text && item.is_string();
  }
  if (!all_text) {
    problem(shown_name(keys), "must be a list of strings, not " + shown(*value));
    return {};
  }
  for (const Json& item : *value) items.push_back(item.get<std::string>());
  return items;
}

int64_t ConfigReader::size(Keys keys) {
  if (find(keys) == nullptr) {
    const bool other = keys.size() > 1;
    const std::string name(*keys.begin());
    problem(name,
            other ? "(or '" + std::string(*(keys.begin() + 1)) + "') is missing" : "is missing");
    return 1;
  }
  return integer(keys, 1, kMostElements).value_or(1);
}

int64_t ConfigReader::size_or(Keys keys, int64_t otherwise) {
  return integer(keys, 1, kMostElements).value_or(otherwise);
}

void ConfigReader::refuse_unknown_numeric_keys() {
  for (const auto& [key, value] : object_->items()) {
    if (is_off(value) || known_.contains(key) || !changes_numbers(key)) continue;
    problem(key, "= " + shown(value) + " is not supported and would change the numbers");
  }
}

void ConfigReader::take_problems(const ConfigReader& inner) {
  problems_.insert(problems_.end(), inner.problems_.begin(), inner.problems_.end());
}

void ConfigReader::finish() const {
  if (!problems_.empty()) throw ConfigError(problems_);
}

}  // namespace longshore
