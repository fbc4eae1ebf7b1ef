#include "trainer/data/data_files.h"

#include <filesystem>
#include <utility>

#include "hf/hub_dataset.h"

namespace longshore {
namespace {

void replace_ids(std::vector<std::string>& files, std::vector<double>& weights, DatasetUse use) {
  std::vector<std::string> paths;
  std::vector<double> own;
  for (size_t i = 0; i < files.size(); ++i) {
    std::error_code ignored;
    std::vector<std::string> found = {files[i]};
    if (!std::filesystem::exists(files[i], ignored) && names_hub_dataset(files[i])) {
      found = hub_dataset_files(files[i], use);
    }
    if (i < weights.size()) own.insert(own.end(), found.size(), weights[i]);
    std::move(found.begin(), found.end(), std::back_inserter(paths));
  }
  files = std::move(paths);
  weights = std::move(own);
}

}  // namespace

DataSection with_data_files(DataSection data) {
  std::vector<double> none;
  replace_ids(data.train, data.weights, DatasetUse::kTrain);
  replace_ids(data.eval, none, DatasetUse::kEvaluate);
  return data;
}

}  // namespace longshore
