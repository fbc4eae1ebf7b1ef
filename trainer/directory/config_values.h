// The values of a resolved run file, by key. Pure function over its text.
#pragma once

#include <map>
#include <string>

namespace longshore {

// As to_toml writes them: "train.epochs" -> "2.0".
std::map<std::string, std::string> config_values(const std::string& text);

}  // namespace longshore
