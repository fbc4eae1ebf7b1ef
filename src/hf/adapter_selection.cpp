#include "hf/adapter_selection.h"

#include <algorithm>
#include <cctype>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr std::string_view kDigits = "0123456789";

std::optional<NamePattern> read_pattern(const Json& config, const std::string& key,
                                        const AdapterSelection::Refuse& refuse) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_string()) return std::nullopt;
  const auto& text = found->get_ref<const std::string&>();
  try {
    return NamePattern(text, NamePattern::Scope::kWhole);
  } catch (const ConfigError& error) {
    refuse(key, std::string(error.what()) + "; list the names of the modules instead");
    return std::nullopt;
  }
}

bool ends_with_part(std::string_view name, std::string_view end) {
  return name == end || (name.size() > end.size() && name.ends_with(end) &&
                         name[name.size() - end.size() - 1] == '.');
}

bool is_number(std::string_view part) {
  return !part.empty() && part.size() < 10 && part.find_first_not_of(kDigits) == part.npos;
}

std::vector<std::string_view> parts_of(std::string_view module) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= module.size();) {
    const size_t dot = std::min(module.find('.', begin), module.size());
    parts.push_back(module.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return parts;
}

// Returns one text or a list of texts; other values are refused.
std::vector<std::string> texts_of(const Json& config, const std::string& key,
                                  const AdapterSelection::Refuse& refuse) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) return {found->get<std::string>()};
  std::vector<std::string> texts;
  for (const Json& one : *found) {
    if (!one.is_string()) {
      refuse(key, "must be a list of names or a text");
      return {};
    }
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

// PEFT looks for experts and routers by target_parameters, which no choice of modules limits.
bool is_of_parameters(std::string_view module, const AdapterSettings& settings) {
  if (settings.parameters.empty()) return false;
  if (module.ends_with(".experts") || module.ends_with(".experts.base_layer")) return true;
  return std::ranges::any_of(settings.parameters, [module](const std::string& parameter) {
    return parameter.ends_with(".weight") &&
           ends_with_part(module, parameter.substr(0, parameter.rfind('.')));
  });
}

}  // namespace

AdapterSelection::AdapterSelection(const Json& config, const Refuse& refuse) {
  const auto targets = config.find("target_modules");
  if (targets != config.end() && *targets != "all-linear") {
    targets_ = read_pattern(config, "target_modules", refuse);
  }
  const auto excluded = config.find("exclude_modules");
  if (excluded != config.end() && *excluded != "") {
    excluded_ = read_pattern(config, "exclude_modules", refuse);
    if (!excluded->is_string()) excluded_names_ = texts_of(config, "exclude_modules", refuse);
  }
  read_layers(config, refuse);
}

// PEFT reads these two keys only where target_modules is a list.
void AdapterSelection::read_layers(const Json& config, const Refuse& refuse) {
  const auto given = config.find("layers_to_transform");
  if (targets_ || given == config.end() || given->is_null()) return;
  if (given->is_array() && given->empty()) return;
  layers_.emplace();
  for (const Json& one : given->is_array() ? *given : Json::array({*given})) {
    if (one.is_number_integer()) {
      layers_->insert(one.get<int64_t>());
    } else {
      refuse("layers_to_transform", "must be a layer's number or a list of them");
      return;
    }
  }
  for (std::string& pattern : texts_of(config, "layers_pattern", refuse)) {
    if (pattern.empty()) continue;
    const bool name = std::ranges::all_of(
        pattern, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (!name) refuse("layers_pattern", "is read as the name of a list of layers only");
    layers_patterns_.push_back(std::move(pattern));
  }
}

// The layer's number is the first number after two parts of the name, or the first after a name of
// layers_pattern.
std::optional<int64_t> AdapterSelection::layer_of(std::string_view module) const {
  const std::vector<std::string_view> parts = parts_of(module);
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const bool named =
        layers_patterns_.empty() ? i > 1 : std::ranges::count(layers_patterns_, parts[i - 1]) > 0;
    if (named && is_number(parts[i])) return std::stoll(std::string(parts[i]));
  }
  return std::nullopt;
}

bool AdapterSelection::selects(const std::string& module) const {
  if (excluded_ && excluded_->matches(module)) return false;
  for (const std::string& name : excluded_names_) {
    if (ends_with_part(module, name)) return false;
  }
  if (targets_ && !targets_->matches(module)) return false;
  if (!layers_) return true;
  const std::optional<int64_t> layer = layer_of(module);
  return layer && layers_->contains(*layer);
}

std::optional<int64_t> AdapterSelection::layer_without(
    const std::vector<std::string>& modules) const {
  if (!layers_) return std::nullopt;
  std::set<int64_t> missing = *layers_;
  for (const std::string& module : modules) {
    if (const std::optional<int64_t> layer = layer_of(module)) missing.erase(*layer);
  }
  if (missing.empty()) return std::nullopt;
  return *missing.begin();
}

void check_selection(const AdapterSelection& selection, const AdapterSettings& settings,
                     const std::vector<std::string>& modules, const std::string& weights) {
  const std::string config(kAdapterConfigName);
  const auto is_left_out = [&](const std::string& module) {
    return !is_of_parameters(module, settings) && !selection.selects(module);
  };
  const auto left_out = std::ranges::count_if(modules, is_left_out);
  if (left_out > 0) {
    throw DataError(weights + ": holds adapters of " + std::to_string(modules.size()) +
                    " modules, and target_modules, exclude_modules and layers_to_transform of " +
                    config + " select " + std::to_string(std::ssize(modules) - left_out) +
                    " of them, not '" + printable(*std::ranges::find_if(modules, is_left_out)) +
                    "': PEFT would load these alone; set the keys to the modules that are meant, "
                    "or save the adapter again with PEFT's save_pretrained");
  }
  if (const std::optional<int64_t> layer = selection.layer_without(modules)) {
    throw DataError(weights + ": has no adapter in layer " + std::to_string(*layer) +
                    ", which layers_to_transform of " + config + " names");
  }
}

}  // namespace longshore
