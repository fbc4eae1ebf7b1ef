// File operations that check every result. Any thread. The caller that opens a descriptor
// owns it. Every failure is an IoError with operation, path and errno.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

// Owns a file descriptor and remembers its path for error texts. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  UniqueFd(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  UniqueFd(UniqueFd&& other) noexcept;
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }
  // Closes the descriptor and ignores errors of close(); for durability call sync_file before.
  void reset();

 private:
  int fd_ = -1;
  std::string path_;
};

// Opens a regular file, also through links. Throws IoError for other files; never waits for a pipe.
UniqueFd open_for_reading(const std::string& path);
// Creates the file, or truncates an existing one.
UniqueFd create_file(const std::string& path);

// Returns the size of an open regular file. Throws IoError for a pipe or a directory.
Bytes file_bytes(const UniqueFd& fd);
// Returns a text that is equal for two open files of one machine if they are the same file.
std::string file_identity(const UniqueFd& fd);

// Returns whether the path still names the open file, which others may move, remove or replace.
bool is_named(const UniqueFd& fd);

// FileIdentity: tells whether an open file was written, cut or grown since. Plain value.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  Bytes bytes = 0;
  int64_t modified = 0;  // nanoseconds since the epoch
  bool operator==(const FileIdentity&) const = default;
};
FileIdentity identity_of(const UniqueFd& fd);

// Fills `into` from `offset`. Throws IoError if the file ends before it is full.
void read_exact_at(const UniqueFd& fd, Bytes offset, std::span<std::byte> into);

// write_all writes at the descriptor's position, write_exact_at at the given offset.
void write_all(const UniqueFd& fd, std::span<const std::byte> bytes);
void write_all(const UniqueFd& fd, std::string_view text);
void write_exact_at(const UniqueFd& fd, Bytes offset, std::span<const std::byte> bytes);

// Returns the directory of a path; "." if the path names none.
std::string parent_of(const std::string& path);

void sync_file(const UniqueFd& fd);
void sync_directory(const std::string& path);

// Reads a whole regular file. Throws DataError if it is a Git LFS pointer or longer than
// `max_bytes`, and never holds more than that.
std::string read_whole_file(const std::string& path, Bytes max_bytes);
// Throws DataError if `begin`, a file's first bytes, is a Git LFS pointer, which a clone without
// Git LFS has in place of the file.
void refuse_lfs_pointer(std::string_view begin, const std::string& path);
// Like read_whole_file, but the path may be a pipe: `plan <(make-run)`.
std::string read_input(const std::string& path, Bytes max_bytes);
// Like read_whole_file, from an open descriptor's position to its end (for example stdin).
std::string read_to_end(const UniqueFd& fd, Bytes max_bytes);
// Passes the bytes of an open file, from its beginning, to `use` in pieces of at most 1 MiB.
void read_in_pieces(const UniqueFd& fd, const std::function<void(std::span<const std::byte>)>& use);
// Returns the first line of a small file of the system; nullopt if it cannot be read.
std::optional<std::string> first_line(const std::string& path);
// Returns the word after the key in such a file, as in "MemTotal: 1024 kB"; "" if it is missing.
std::string word_behind(const std::string& path, std::string_view key);
// Returns the directory if it exists, else the nearest one above it that does.
std::string nearest_existing(const std::string& directory);
// Returns a new descriptor for standard input, named "stdin".
UniqueFd duplicate_stdin();

// Replaces the file atomically and durably (temporary file, fsync, rename, fsync of the directory).
// A crash leaves either the old or the new content.
void write_file_durably(const std::string& path, std::string_view text);

// Makes the directory and its parents. An existing directory is not an error.
void make_directories(const std::string& path);
// Removes a file or a whole directory without following links. An absent path is not an error.
void remove_tree(const std::string& path);

// Both views accept strings and trivially copyable elements.
template <typename T>
std::span<const std::byte> bytes_of(std::span<const T> elements) {
  return std::as_bytes(elements);
}
inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// Own files: files that belong to a run, and outputs that a user named. A run writes nothing
// outside its own directories: no symbolic link is followed, no pipe is waited for, and temporary
// names are unpredictable. Plain functions, any thread; failures as in base/file.h.

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

// Waits for the writer of a pipe that was opened with O_NONBLOCK. Internal to src/base; any thread.

// Returns when a writer has opened the pipe, and at once if the descriptor is not a pipe. Throws
// IoError if no writer appears within `patience`.
void wait_for_writer(const UniqueFd& fd, std::chrono::milliseconds patience);

}  // namespace longshore
