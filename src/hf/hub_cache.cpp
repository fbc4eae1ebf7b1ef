#include "hf/hub_cache.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string_view>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "hf/directory_entry.h"
#include "hf/yaml.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kMaxRefBytes = 4096;
constexpr JsonLimits kListLimits = {.max_bytes = 256 * kMiB, .max_depth = 8};

struct HubId {
  std::string owner, name, revision = "main";
};

// The hub has no names that begin with "-", which a printed command would take for options.
bool is_part(std::string_view text) {
  const auto allowed = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == '.';
  };
  return is_plain_file_name(text) && !text.starts_with('-') &&
         std::all_of(text.begin(), text.end(), allowed);
}

std::optional<HubId> parse_id(std::string_view text) {
  HubId id;
  const size_t at = text.find('@');
  if (at != std::string_view::npos) id.revision = text.substr(at + 1);
  text = text.substr(0, at);
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  id.owner = text.substr(0, slash);
  id.name = text.substr(slash + 1);
  if (!is_part(id.owner) || !is_part(id.name) || !is_part(id.revision)) return std::nullopt;
  return id;
}

std::string said(const char* value) {
  return value == nullptr ? "" : value;
}

// Returns the commit of a branch or tag; otherwise the revision itself.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  const fs::path ref = repository / "refs" / revision;
  std::error_code ignored;
  if (!fs::is_regular_file(ref, ignored)) return revision;
  std::string commit = read_whole_file(ref.string(), kMaxRefBytes);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) {
    commit.pop_back();
  }
  if (!is_part(commit)) throw DataError(ref.string() + ": names no commit");
  return commit;
}

constexpr size_t kMaxFiles = 100'000;
constexpr Bytes kMaxCardBytes = 16 * kMiB;

struct DatasetName {
  std::string id, config, split;
};

DatasetName parse_name(std::string_view text) {
  DatasetName name;
  const size_t first = text.find(':');
  name.id = text.substr(0, first);
  if (first == std::string_view::npos) return name;
  const std::string_view rest = text.substr(first + 1);
  const size_t second = rest.find(':');
  if (second != std::string_view::npos) name.config = rest.substr(0, second);
  name.split = second == std::string_view::npos ? rest : rest.substr(second + 1);
  return name;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return names.size() > kMost ? text + ", ..." : text;
}

// Returns a file's kind, lower is preferred; -1 for files that are not read.
int kind_of(std::string name) {
  for (const char* packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.rfind('.'));
  }
  static const std::set<std::string> kNotRows = {
      "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"};
  if (kNotRows.contains(name.substr(name.rfind('/') + 1))) return -1;
  if (name.ends_with(".parquet")) return 0;
  for (const char* end : {".jsonl", ".json", ".ndjson"}) {
    if (name.ends_with(end)) return 1;
  }
  return name.ends_with(".txt") ? 2 : -1;
}

bool matches(const std::string& pattern, const std::string& path) {
  const size_t any = pattern.find("**");
  if (any == std::string::npos) return ::fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME) == 0;
  if (::fnmatch(pattern.c_str(), path.c_str(), 0) == 0) return true;
  // "**/" also matches no folder at all.
  std::string without = pattern;
  if (without.compare(any, 3, "**/") != 0) return false;
  return ::fnmatch(without.erase(any, 3).c_str(), path.c_str(), 0) == 0;
}

// Returns the usual split name that a word of the path means; "" without one.
std::string usual_split(const std::string& path) {
  static const std::array<std::pair<const char*, std::regex>, 3> kUsual = {{
      {"train", std::regex("(^|[^a-z0-9])(train|training)([^a-z]|$)", std::regex::icase)},
      {"validation",
       std::regex("(^|[^a-z0-9])(validation|valid|dev|val)([^a-z]|$)", std::regex::icase)},
      {"test",
       std::regex("(^|[^a-z0-9])(test|testing|eval|evaluation)([^a-z]|$)", std::regex::icase)},
  }};
  for (const auto& [name, words] : kUsual) {
    if (std::regex_search(path, words)) return name;
  }
  return {};
}

using Splits = std::map<std::string, std::vector<std::string>>;

Splits splits_by_name(const std::vector<std::string>& paths) {
  static const std::regex kShard("(^|/)data/([^/]+)-[0-9]{5}-of-[0-9]{5}[^/]*$");
  Splits shards, usual;
  for (const std::string& path : paths) {
    std::smatch match;
    if (std::regex_search(path, match, kShard)) shards[match[2]].push_back(path);
    std::string split = usual_split(path.substr(path.rfind('/') + 1));
    if (split.empty()) split = usual_split(path);
    if (!split.empty()) usual[split].push_back(path);
  }
  if (!shards.empty()) return shards;
  if (!usual.empty()) return usual;
  return paths.empty() ? Splits() : Splits{{"train", paths}};
}

class HubDataset {
 public:
  explicit HubDataset(const std::string& named) : named_(named), name_(parse_name(named)) {
    const auto snapshot = find_in_hub_cache(name_.id, HubKind::kDataset);
    if (!snapshot) {
      throw DataError(named + ": no such file, and no data set in the Hugging Face cache " +
                      hub_cache_directory() +
                      "; fetch it with: " + fetch_command(name_.id, HubKind::kDataset));
    }
    root_ = *snapshot;
    if (auto listed = listed_in_hub_cache(root_)) {
      files_ = std::move(*listed);
      std::erase_if(files_, is_hidden);
      if (files_.size() > kMaxFiles) refuse_size();
    } else {
      list_files();
    }
    read_card();
  }

  std::vector<std::string> files(DatasetUse use) const {
    const DatasetConfig config = choose_config();
    const Splits splits = splits_of(config);
    const std::string split = choose_split(config, splits, use);
    const std::vector<std::string>& chosen = splits.at(split);
    check_fetched(chosen, split);
    check_shards(chosen);
    std::vector<std::string> paths;
    for (const std::string& path : chosen) paths.push_back((fs::path(root_) / path).string());
    return paths;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(named_ + ": the data set in " + root_ + " " + what);
  }

  std::string again() const {
    return "; fetch what is missing with: " + fetch_command(name_.id, HubKind::kDataset);
  }

  [[noreturn]] void refuse_size() const {
    refuse("has too many files; name those that are wanted");
  }

  static bool is_hidden(const std::string& path) {
    return path.starts_with('.') || path.find("/.") != std::string::npos;
  }

  void list_files() {
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      const std::string path = entry.path().lexically_relative(root_).string();
      if (is_hidden(path)) continue;
      // Cached files are links to the fetched bytes.
      if (entry.is_symlink() && !fs::exists(entry.path())) {
        refuse("has no bytes of " + path + again());
      }
      if (!entry.is_regular_file()) continue;
      if (files_.size() == kMaxFiles) refuse_size();
      files_.push_back(path);
    }
    std::sort(files_.begin(), files_.end());
  }

  void read_card() {
    const fs::path card = fs::path(root_) / "README.md";
    if (fs::exists(card)) {
      configs_ = dataset_configs(read_whole_file(card.string(), kMaxCardBytes), card.string());
    } else if (std::binary_search(files_.begin(), files_.end(), "README.md")) {
      refuse("lacks its README.md, which may say what its configs and splits are" + again());
    }
    if (configs_.empty()) configs_.emplace_back(DatasetConfig{"default", "", true, {}});
  }

  DatasetConfig choose_config() const {
    std::vector<std::string> names;
    for (const DatasetConfig& config : configs_) {
      if (name_.config.empty() ? configs_.size() == 1 : config.name == name_.config) return config;
      names.push_back(config.name);
    }
    for (const DatasetConfig& config : configs_) {
      if (name_.config.empty() && config.is_default) return config;
    }
    refuse("has the configs " + listed(names) + "; name one: " + name_.id + ":CONFIG:SPLIT");
  }

  Splits splits_of(const DatasetConfig& config) const {
    const std::string folder = config.folder.empty() ? "" : config.folder + "/";
    std::vector<DatasetConfig::Split> wanted = config.splits;
    if (wanted.empty()) wanted.push_back({"", {"**"}});
    Splits splits;
    for (const DatasetConfig::Split& split : wanted) {
      std::array<std::vector<std::string>, 3> kinds;
      std::vector<std::string> others;
      for (const std::string& path : files_) {
        const auto fits = [&](const std::string& glob) { return matches(folder + glob, path); };
        if (std::none_of(split.paths.begin(), split.paths.end(), fits)) continue;
        const int kind = kind_of(path);
        (kind < 0 ? others : kinds[static_cast<size_t>(kind)]).push_back(path);
      }
      const auto found = std::find_if(kinds.begin(), kinds.end(),
                                      [](const auto& paths) { return !paths.empty(); });
      if (found == kinds.end()) {
        // Other splits than the requested one may be empty.
        if (split.name == name_.split || wanted.size() == 1) refuse_unread(others);
        splits[split.name];
      } else if (split.name.empty()) {
        splits.merge(splits_by_name(*found));
      } else {
        splits[split.name] = *found;
      }
    }
    return splits;
  }

  [[noreturn]] void refuse_unread(std::vector<std::string> others) const {
    std::erase_if(others, [](const std::string& path) { return path == "README.md"; });
    if (others.empty()) refuse("has none of its files" + again());
    refuse("has no file of rows that is read (Parquet, JSONL, JSON, text), but " + listed(others) +
           "; write it so once: datasets.load_dataset(\"" + name_.id +
           "\", split=\"train\").to_parquet(\"rows.parquet\")");
  }

  std::string choose_split(const DatasetConfig& config, const Splits& splits,
                           DatasetUse use) const {
    std::vector<std::string> names;
    for (const auto& [name, paths] : splits) names.push_back(name);
    std::string split = name_.split;
    if (split.empty() && names.size() == 1) split = names.front();
    if (split.empty() && use == DatasetUse::kTrain) split = "train";
    const auto found = splits.find(split);
    if (found == splits.end()) {
      const bool is_config = std::any_of(configs_.begin(), configs_.end(),
                                         [&](const auto& other) { return other.name == split; });
      if (is_config && name_.config.empty()) {
        refuse("has a config " + split + "; name its split too: " + name_.id + ":" + split +
               ":SPLIT");
      }
      refuse("has the splits " + listed(names) + "; name one: " + name_.id + ":" +
             (config.is_default ? "" : config.name + ":") + "SPLIT");
    }
    if (found->second.empty()) refuse("has no file of its split " + split + again());
    return split;
  }

  void check_fetched(const std::vector<std::string>& paths, const std::string& split) const {
    const auto fetched = std::count_if(paths.begin(), paths.end(), [this](const auto& path) {
      return fs::exists(fs::path(root_) / path);
    });
    if (static_cast<size_t>(fetched) == paths.size()) return;
    refuse("has " + std::to_string(fetched) + " of the " + std::to_string(paths.size()) +
           " files of its split " + split + again());
  }

  // The name "train-00001-of-00004.parquet" tells that four files exist.
  void check_shards(const std::vector<std::string>& paths) const {
    static const std::regex kShard("^(.*)-[0-9]{5}-of-([0-9]{5})");
    std::map<std::string, size_t> found, wanted;
    for (const std::string& path : paths) {
      std::smatch match;
      if (!std::regex_search(path, match, kShard)) continue;
      const std::string set = match[1].str() + "-of-" + match[2].str();
      ++found[set];
      wanted[set] = std::stoul(match[2]);
    }
    for (const auto& [set, count] : wanted) {
      if (found[set] >= count) continue;
      refuse("has " + std::to_string(found[set]) + " of the " + std::to_string(count) +
             " files of " + set.substr(0, set.rfind("-of-")) + again());
    }
  }

  const std::string& named_;
  DatasetName name_;
  std::string root_;
  std::vector<std::string> files_;  // relative, sorted; includes unfetched files if the cache lists
                                    // them
  std::vector<DatasetConfig> configs_;
};

}  // namespace

bool is_hub_id(std::string_view text) {
  return parse_id(text).has_value();
}

std::string hub_cache_directory() {
  if (const std::string own = said(std::getenv("HF_HUB_CACHE")); !own.empty()) return own;
  if (const std::string home = said(std::getenv("HF_HOME")); !home.empty()) return home + "/hub";
  if (const std::string caches = said(std::getenv("XDG_CACHE_HOME")); !caches.empty()) {
    return caches + "/huggingface/hub";
  }
  return said(std::getenv("HOME")) + "/.cache/huggingface/hub";
}

std::optional<std::string> find_in_hub_cache(std::string_view text, HubKind kind) {
  const std::optional<HubId> id = parse_id(text);
  if (!id) return std::nullopt;
  const std::string folder = kind == HubKind::kModel ? "models--" : "datasets--";
  const fs::path repository =
      fs::path(hub_cache_directory()) / (folder + id->owner + "--" + id->name);
  const fs::path snapshot = repository / "snapshots" / commit_of(repository, id->revision);
  std::error_code ignored;
  if (!fs::is_directory(snapshot, ignored)) return std::nullopt;
  return snapshot.string();
}

std::optional<std::vector<std::string>> listed_in_hub_cache(const std::string& snapshot) {
  const fs::path commit(snapshot);
  const fs::path list =
      commit.parent_path().parent_path() / "trees" / (commit.filename().string() + ".json");
  std::error_code ignored;
  if (!fs::is_regular_file(list, ignored)) return std::nullopt;
  try {
    const Json tree = read_json_file(list.string(), kListLimits);
    if (tree.at("format_version") != 1) return std::nullopt;
    std::vector<std::string> names;
    for (const auto& [name, facts] : tree.at("files").items()) {
      const fs::path path = fs::path(name).lexically_normal();
      if (path.empty() || path.is_absolute() || *path.begin() == "..") return std::nullopt;
      names.push_back(path.string());
    }
    std::sort(names.begin(), names.end());
    return names;
  } catch (const std::exception&) {
    return std::nullopt;  // the caller lists the directory instead
  }
}

std::string fetch_command(std::string_view id, HubKind kind) {
  const size_t at = id.find('@');
  std::string command = "hf download ";
  if (kind == HubKind::kDataset) command += "--repo-type dataset ";
  command += id.substr(0, at);
  if (at != std::string_view::npos) command += " --revision " + std::string(id.substr(at + 1));
  return command;
}

bool names_hub_dataset(std::string_view text) {
  const std::string id = parse_name(text).id;
  // The path of a missing data file is not an id.
  return is_hub_id(id) && (id.find('@') != std::string::npos || kind_of(id) < 0);
}

std::vector<std::string> hub_dataset_files(const std::string& named, DatasetUse use) {
  return HubDataset(named).files(use);
}

std::string lasting_model_name(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return is_hub_id(path) ? path.substr(0, path.find('@')) : path;
  }
  fs::path whole = fs::absolute(path, ignored).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  // .../models--OWNER--NAME/snapshots/COMMIT
  constexpr std::string_view kModels = "models--";
  std::string folder = whole.parent_path().parent_path().filename().string();
  if (whole.parent_path().filename() == "snapshots" && folder.starts_with(kModels)) {
    std::string id = folder.substr(kModels.size());
    const size_t dashes = id.find("--");
    if (dashes != id.npos && is_hub_id(id.replace(dashes, 2, "/"))) return id;
  }
  return whole.string();
}

UniqueFd open_hub_directory(const std::string& path, const std::string& expected) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return open_directory(path);
    throw ConfigError(path + ": not a directory; " + expected);
  }
  const std::optional<std::string> cached = find_in_hub_cache(path);
  if (cached) return open_directory(*cached);
  if (!is_hub_id(path)) throw ConfigError(path + ": no such directory; " + expected);
  throw ConfigError(path + ": no such directory, and not in the Hugging Face cache " +
                    hub_cache_directory() +
                    "; fetch it with: " + fetch_command(path, HubKind::kModel));
}

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
