// DatasetCard: the `configs` in the YAML head of a Hugging Face data set's README.md, which
// describe its files. Plain values and functions.
#pragma once

#include <string>
#include <vector>

namespace longshore {

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
