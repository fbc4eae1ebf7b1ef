// ConfigChange: the values of a resolved run file by key, and the differences between two such
// files. Pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace longshore {

// Returns a line "train.epochs: 2 -> 3" for each key that differs or is in only one of the files.
// Keys of [run] are left out, except run.seed, because every start may set them differently.
std::vector<std::string> config_changes(const std::string& before, const std::string& now);

// Returns the values of a resolved run file by key, in to_toml's format: "train.epochs" -> "2.0".
std::map<std::string, std::string> config_values(const std::string& text);

}  // namespace longshore
