// Files that belong to a run, and outputs that a user named. A run writes nothing outside its own
// directories, whatever stands in them: no symbolic link is followed, no pipe is waited for, and no
// temporary name can be foreseen. Plain functions, any thread; failures as in base/file.h.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace longshore {

// A regular file of a run; `flags` as of open(2).
UniqueFd open_own_file(const std::string& path, int flags);
// The whole of one, as read_whole_file.
std::string read_own_file(const std::string& path, Bytes max_bytes);
// True for a symbolic link, dangling or not.
bool is_symbolic_link(const std::string& path);
// Makes the directory and its parents; it may exist, and may be no symbolic link.
void make_own_directory(const std::string& path);

// As write_file_durably, but nobody waits for the disk: for what is written often and may be lost
// with the machine.
void replace_file(const std::string& path, std::string_view text);
// Whether `name` is that of a temporary file of `target`; both without their directory.
bool is_temporary_of(std::string_view name, std::string_view target);

// As write_file_durably, for a path that the user named: a device or a pipe is written to as it is,
// and a symbolic link is followed.
void write_output_file(const std::string& path, std::string_view text);

}  // namespace longshore
