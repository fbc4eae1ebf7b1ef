// Arguments of a command that concern run files: their paths, and keys as
// `--section.key=value`. Pure functions, of which two look at the file system; any thread.
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

// The run file that commands read if none is named, and that `init` writes.
inline constexpr const char* kUsualRunFile = "run.toml";

// Returns the path of the configuration that the run of a directory recorded; other paths as they
// are.
std::string run_file_at(const std::string& given);

// Returns the reason why `path` is no run file, with what to do; "" if it may be one.
std::string why_no_run_file(const std::string& path);

}  // namespace longshore
