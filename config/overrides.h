// Overrides: extracts `--section.key=value` from a command's arguments. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"

namespace longshore {

struct SplitArguments {
  std::vector<Override> overrides;
  std::vector<std::string> rest;  // the other arguments in order
};

// Extracts every `--section.key=value` and `--section.key value` before "--". Every option with a
// dot in its name counts as a key; load_run_config reports unknown ones. ConfigError if a value is
// missing.
SplitArguments split_overrides(const std::vector<std::string>& arguments);

}  // namespace longshore
