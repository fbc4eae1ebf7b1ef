// RunFilePath: the files that a user gives where a run file is expected. Pure functions that look
// at the file system; any thread.
#pragma once

#include <string>

namespace longshore {

// The run file that commands read if none is named, and that `init` writes.
inline constexpr const char* kUsualRunFile = "run.toml";

// Returns the path of the configuration that the run of a directory recorded; other paths as they
// are.
std::string run_file_at(const std::string& given);

// Returns the reason why `path` is no run file, with what to do; "" if it may be one.
std::string why_no_run_file(const std::string& path);

}  // namespace longshore
