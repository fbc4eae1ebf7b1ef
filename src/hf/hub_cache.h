// Finds models and data sets in the local Hugging Face cache by their hub ids. It only reads the
// cache's folders and never uses the network. Plain functions. hub_dataset_files chooses the files
// of a data set there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace longshore {

// Accepts "owner/name" and "owner/name@revision" (a branch, a tag or a commit).
bool is_hub_id(std::string_view text);

// Returns the cache directory by Hugging Face's rules: HF_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub.
std::string hub_cache_directory();

enum class HubKind : uint8_t { kModel, kDataset };

// Returns the directory of the snapshot; nullopt if it is not in the cache.
std::optional<std::string> find_in_hub_cache(std::string_view id, HubKind kind = HubKind::kModel);

// Returns the files of the snapshot's commit, fetched or not, sorted by name, from
// huggingface_hub's trees/COMMIT.json; nullopt if that is missing or unreadable.
std::optional<std::vector<std::string>> listed_in_hub_cache(const std::string& snapshot);

// Returns the command that fetches the id into the cache.
std::string fetch_command(std::string_view id, HubKind kind);

// Opens a directory by its path, or by the hub id of a model or an adapter in the cache.
// ConfigError ends with `expected` ("model.path names ...") or tells how to fetch it.
UniqueFd open_hub_directory(const std::string& path, const std::string& expected);

// Returns a name of the model that stays valid in files that move to other folders and machines:
// the hub id without a revision, also for a directory in a Hugging Face cache; otherwise the
// absolute path.
std::string lasting_model_name(const std::string& path);

// The files of a data set in the local Hugging Face cache, chosen as the Python package `datasets`
// would. It only looks at file names and the README. Plain functions.

// The purpose decides the split if the name has none: the only split, if there is just one;
// otherwise "train" for training, and an error for evaluation.
enum class DatasetUse : uint8_t { kTrain, kEvaluate };

// Accepts "owner/name" or "owner/name@revision", optionally with ":split" or ":config:split".
bool names_hub_dataset(std::string_view text);

// Returns the paths sorted by name. DataError lists what exists, or tells how to fetch it.
std::vector<std::string> hub_dataset_files(const std::string& named, DatasetUse use);

// The `configs` in the YAML head of a Hugging Face data set's README.md, which describe its files.
// Plain values and functions.

struct DatasetConfig {
  struct Split {
    std::string name;                // empty: split by file names
    std::vector<std::string> paths;  // globs relative to the folder
  };
  std::string name;
  std::string folder;  // folder of the files; empty: the data set's
  bool is_default = false;
  std::vector<Split> splits;  // empty: split by file names
};

// Throws DataError for unsupported YAML; `origin` names the file in the error.
std::vector<DatasetConfig> dataset_configs(const std::string& card, const std::string& origin);

}  // namespace longshore
