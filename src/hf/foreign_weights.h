// ForeignWeights: weight files in unsupported formats: their names, and the error text for a
// directory that has no others. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// Returns true for weights, checkpoints and weight indexes of any format, including safetensors. An
// export never copies them, because they would contradict the new weights.
bool is_weight_file_name(std::string_view name);

// Returns one line: why a directory with these entries has no readable weights, and the remedy.
std::string no_weights_reason(const std::string& directory, const std::vector<std::string>& names);

}  // namespace longshore
