// WeightIndex: model.safetensors.index.json, which maps tensors to files; parsed from untrusted
// text, and written. Plain values and pure functions. A directory without such files may have
// weights in unsupported formats, which errors name.
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
  // File name -> sorted names of its tensors. File names are plain and end in ".safetensors".
  std::map<std::string, std::vector<std::string>> tensors_of_file;
  std::optional<Bytes> total_size;  // metadata.total_size; missing or not an integer in some files
};

// Throws DataError. `origin` is the file's path, for messages.
WeightIndex parse_weight_index(std::string_view text, const std::string& origin);

// Formats as transformers does: sorted keys, indentation of two spaces.
std::string format_weight_index(const WeightIndex& index);

// Returns an index's text with another metadata.total_size and the same order.
std::string with_total_size(std::string_view text, Bytes total_size);

// Returns an index's text without these tensors, in the same order.
std::string without_tensors(std::string_view text, const std::vector<std::string>& names);

// Weight files in unsupported formats: their names, and the error text for a directory that has no
// others. Pure functions.

// Returns true for weights, checkpoints and weight indexes of any format, including safetensors,
// and for files that describe them: backups of an index, statistics and settings of quantisers, the
// state of a trainer. An export never copies them, because they would contradict the new weights.
bool is_weight_file_name(std::string_view name);

// Returns true for files of weights, and for an adapter's configuration, that a program may load
// from a model directory in place of model.safetensors or in addition to it.
bool is_loaded_as_weights(std::string_view name);

// Returns one line: why a directory with these entries has no readable weights, and the remedy.
std::string no_weights_reason(const std::string& directory, const std::vector<std::string>& names);

}  // namespace longshore
