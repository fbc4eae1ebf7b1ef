// What differs between two resolved run files, by key. Pure functions over their texts.
#pragma once

#include <string>
#include <vector>

namespace longshore {

// "train.epochs: 2 -> 3", one line for each key that is in both with different values, or in one.
// Keys of [run], which every command line may name in its own way, are left out but for run.seed.
std::vector<std::string> config_changes(const std::string& before, const std::string& now);

}  // namespace longshore
