// ConfigChange: differences between two resolved run files, by key. Pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace longshore {

// Returns a line "train.epochs: 2 -> 3" for each key that differs or is in only one of the files.
// Keys of [run] are left out, except run.seed, because every start may set them differently.
std::vector<std::string> config_changes(const std::string& before, const std::string& now);

// ConfigValues: the values of a resolved run file, by key. Pure function over its text.

// Returns the values in to_toml's format: "train.epochs" -> "2.0".
std::map<std::string, std::string> config_values(const std::string& text);

}  // namespace longshore
