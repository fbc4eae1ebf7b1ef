// OwnFile: files that belong to a run, and outputs that a user named. A run writes nothing outside
// its own directories: no symbolic link is followed, no pipe is waited for, and temporary names are
// unpredictable. Plain functions, any thread; failures as in base/file.h.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace longshore {

// Opens a regular file of the run. `flags` are those of open(2).
UniqueFd open_own_file(const std::string& path, int flags);
// Reads a whole file of the run; limits and failures as in read_whole_file.
std::string read_own_file(const std::string& path, Bytes max_bytes);
// Returns true for a symbolic link, dangling or not.
bool is_symbolic_link(const std::string& path);
// Makes the directory and its parents. It may exist, but not as a symbolic link.
void make_own_directory(const std::string& path);

// Replaces the file atomically without fsync: for frequent, not durable files.
void replace_file(const std::string& path, std::string_view text);
// Returns whether `name` is a temporary file of `target`; both have no directory part.
bool is_temporary_of(std::string_view name, std::string_view target);

// Like write_file_durably, for a path that the user named: writes in place to a device or a pipe,
// and follows a symbolic link.
void write_output_file(const std::string& path, std::string_view text);

}  // namespace longshore
