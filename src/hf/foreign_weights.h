// Weight files in formats that are not read: which names they have, and what to tell the user of a
// directory that holds nothing else. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// True for weights and checkpoints of any format, safetensors and indexes of weights included: what
// an export never copies, because it would contradict the new weights.
bool is_weight_file_name(std::string_view name);

// One line: why a directory with these entries has no weights to read, and the way to convert.
std::string no_weights_reason(const std::string& directory, const std::vector<std::string>& names);

}  // namespace longshore
