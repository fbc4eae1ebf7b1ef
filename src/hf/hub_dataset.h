// HubDataset: the files of a data set in the local Hugging Face cache, chosen as the Python package
// `datasets` would. It only looks at file names and the README. Plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// The purpose decides the split if the name has none: the only split, if there is just one;
// otherwise "train" for training, and an error for evaluation.
enum class DatasetUse : uint8_t { kTrain, kEvaluate };

// Accepts "owner/name" or "owner/name@revision", optionally with ":split" or ":config:split".
bool names_hub_dataset(std::string_view text);

// Returns the paths sorted by name. DataError lists what exists, or tells how to fetch it.
std::vector<std::string> hub_dataset_files(const std::string& named, DatasetUse use);

}  // namespace longshore
