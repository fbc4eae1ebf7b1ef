#include "hf/dataset_card.h"

#include <string_view>

#include "base/errors.h"
#include "hf/yaml.h"

namespace longshore {
namespace {

constexpr JsonLimits kCardLimits = {.max_values = 1'000'000};
constexpr std::string_view kWayOut = "; name the data set's files in place of its id";

// Returns the YAML between two lines of dashes, with all that precedes it, so that its lines keep
// their numbers. Empty where huggingface_hub finds none.
std::string_view yaml_head(std::string_view card) {
  const size_t dashes = card.find_first_not_of(" \t\r\n");
  if (dashes == std::string_view::npos || !card.substr(dashes).starts_with("---")) return {};
  const auto ends_line = [card](size_t at) {
    return at == card.size() || card[at] == '\n' || card[at] == '\r';
  };
  if (!ends_line(dashes + 3)) return {};
  for (size_t end = dashes; (end = card.find("\n---", end)) != std::string_view::npos; ++end) {
    if (ends_line(end + 4)) return card.substr(0, end + 1);
  }
  return {};
}

// YAML reads an unquoted name such as 2024 as a number.
std::string text_of(const Json& value) {
  return value.is_number_integer() ? value.dump() : value.get<std::string>();
}

std::string text_in(const Json& entry, const char* key, const std::string& otherwise) {
  const auto found = entry.find(key);
  return found == entry.end() || found->is_null() ? otherwise : text_of(*found);
}

std::vector<std::string> texts_of(const Json& value) {
  if (!value.is_array()) return {text_of(value)};
  std::vector<std::string> texts;
  for (const Json& element : value) texts.push_back(text_of(element));
  return texts;
}

// Throws Json::exception where a value has another type.
DatasetConfig config_of(const Json& entry) {
  DatasetConfig config;
  config.is_default = entry.value("default", false);
  config.name = text_in(entry, "config_name", "default");
  config.folder = text_in(entry, "data_dir", "");
  if (config.name == "default") config.is_default = true;
  const auto files = entry.find("data_files");
  if (files == entry.end() || files->is_null()) return config;
  if (files->is_array() && !files->empty() && files->front().is_object()) {
    for (const Json& split : *files) {
      config.splits.push_back({text_of(split.at("split")), texts_of(split.at("path"))});
    }
  } else if (files->is_object()) {
    for (const auto& [name, paths] : files->items()) {
      config.splits.push_back({name, texts_of(paths)});
    }
  } else {
    config.splits.push_back({"", texts_of(*files)});
  }
  return config;
}

}  // namespace

std::vector<DatasetConfig> dataset_configs(const std::string& card, const std::string& origin) {
  Json read;
  try {
    read = yaml_to_json(yaml_head(card), kCardLimits, origin);
  } catch (const DataError& error) {
    throw DataError(error.what() + std::string(kWayOut));
  }
  std::vector<DatasetConfig> configs;
  if (!read.is_object() || !read.contains("configs") || read["configs"].is_null()) return configs;
  try {
    for (const Json& entry : read["configs"].get_ref<const Json::array_t&>()) {
      configs.push_back(config_of(entry));
    }
  } catch (const Json::exception&) {
    throw DataError(origin + ": its configs are not as data sets' are" + std::string(kWayOut));
  }
  return configs;
}

}  // namespace longshore
