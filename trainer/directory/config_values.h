// ConfigValues: the values of a resolved run file, by key. Pure function over its text.
#pragma once

#include <map>
#include <string>

namespace longshore {

// Returns the values in to_toml's format: "train.epochs" -> "2.0".
std::map<std::string, std::string> config_values(const std::string& text);

}  // namespace longshore
