// HubDataset: the files of a data set that is in the local Hugging Face cache, by its id, as the
// Python package `datasets` would choose them. Looks at files' names alone. Plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// What the files are for: without a split in the name it is "train", or the only one there is;
// for evaluation the only one there is.
enum class DatasetUse : uint8_t { kTrain, kEvaluate };

// "owner/name" or "owner/name@revision", then ":split" or ":config:split".
bool names_hub_dataset(std::string_view text);

// Paths in the order of their names; DataError with what is there, or how to fetch it.
std::vector<std::string> hub_dataset_files(const std::string& named, DatasetUse use);

}  // namespace longshore
