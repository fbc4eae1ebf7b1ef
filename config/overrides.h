// Overrides: `--section.key=value` among the arguments of a command. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"

namespace longshore {

struct SplitArguments {
  std::vector<Override> overrides;
  std::vector<std::string> rest;  // in their order
};

// Takes every `--section.key=value` and `--section.key value` out of the arguments; after "--" all
// are left alone. What has a dot in its name is meant as a key, known or not: load_run_config says
// which it knows. ConfigError where a value is missing.
SplitArguments split_overrides(const std::vector<std::string>& arguments);

}  // namespace longshore
