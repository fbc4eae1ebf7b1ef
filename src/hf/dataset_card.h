// DatasetCard: what the README.md of a data set on the Hugging Face hub says about its files: the
// `configs` of the YAML at its head. Plain values and functions.
#pragma once

#include <string>
#include <vector>

namespace longshore {

struct DatasetConfig {
  struct Split {
    std::string name;                // empty: by the files' names
    std::vector<std::string> paths;  // globs, relative to the folder
  };
  std::string name;
  std::string folder;  // of its files; empty: the data set's
  bool is_default = false;
  std::vector<Split> splits;  // empty: by the files' names
};

// `origin` stands for the file in the error for what is not read: DataError.
std::vector<DatasetConfig> dataset_configs(const std::string& card, const std::string& origin);

}  // namespace longshore
