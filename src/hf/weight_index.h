// WeightIndex: model.safetensors.index.json, which says in which file each tensor lies. Read from
// text of unknown origin, and written. Plain values and pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace longshore {

inline constexpr std::string_view kSingleWeightsName = "model.safetensors";
inline constexpr std::string_view kWeightIndexName = "model.safetensors.index.json";
inline constexpr int64_t kMaxWeightFiles = 1000;
inline constexpr Bytes kMaxIndexBytes = 64 * kMiB;

struct WeightIndex {
  // File name -> names of its tensors, sorted. File names are plain and end in ".safetensors".
  std::map<std::string, std::vector<std::string>> tensors_of_file;
  std::optional<Bytes> total_size;  // metadata.total_size; absent, or no integer, in some files
};

// `origin` is the file's path, for messages. Throws DataError.
WeightIndex parse_weight_index(std::string_view text, const std::string& origin);

// As transformers writes it: keys sorted, two spaces of indentation.
std::string format_weight_index(const WeightIndex& index);

// An index's text with another metadata.total_size; everything else keeps its order.
std::string with_total_size(std::string_view text, Bytes total_size);

}  // namespace longshore
