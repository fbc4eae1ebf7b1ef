// What differs between two resolved run files, by key. Pure functions over their texts.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace longshore {

// A resolved run file's values as it writes them, by key ("train.epochs").
std::map<std::string, std::string> config_values(const std::string& text);

// "train.epochs: 2 -> 3", one line for each key that is in both with different values, or in one.
// Keys of [run], which every command line may name in its own way, are left out but for run.seed.
std::vector<std::string> config_changes(const std::string& before, const std::string& now);

}  // namespace longshore
