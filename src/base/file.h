// File: reading and writing with every result checked. Plain functions, usable from any thread.
// Whoever opened a descriptor owns it; every failure is an IoError with operation, path and errno.
#pragma once

#include <cstddef>
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
  // Closes. Errors of close() are not reported: who needs durability calls sync_file before.
  void reset();

 private:
  int fd_ = -1;
  std::string path_;
};

// A regular file, through links too; IoError for anything else, and never waits for a pipe.
UniqueFd open_for_reading(const std::string& path);
// Creates the file, or empties it where it exists.
UniqueFd create_file(const std::string& path);

// Size of an open regular file; anything else (a pipe, a directory) is an IoError.
Bytes file_bytes(const UniqueFd& fd);

// Fills `into` from `offset`; an end of file before that is an IoError.
void read_exact_at(const UniqueFd& fd, Bytes offset, std::span<std::byte> into);

// Writes at the descriptor's position, and at an offset.
void write_all(const UniqueFd& fd, std::span<const std::byte> bytes);
void write_all(const UniqueFd& fd, std::string_view text);
void write_exact_at(const UniqueFd& fd, Bytes offset, std::span<const std::byte> bytes);

void sync_file(const UniqueFd& fd);
void sync_directory(const std::string& path);

// The whole of a regular file. DataError where it is longer than `max_bytes`; never holds more than
// that.
std::string read_whole_file(const std::string& path, Bytes max_bytes);
// read_whole_file for what a user named for one command, which may be a pipe: `plan <(make-run)`.
std::string read_input(const std::string& path, Bytes max_bytes);
// read_whole_file from an open descriptor's position on; a copy of standard input, for example.
std::string read_to_end(const UniqueFd& fd, Bytes max_bytes);
// A descriptor of its own for standard input, named "stdin".
UniqueFd duplicate_stdin();

// The file has either its old or the new content at any moment, and the new one after the return:
// temporary file beside it, fsync, rename, fsync of the directory.
void write_file_durably(const std::string& path, std::string_view text);

// Makes the directory and its parents; it may exist.
void make_directories(const std::string& path);
// Removes a file or a directory with all it holds, without following links; it may be absent.
void remove_tree(const std::string& path);

// For strings and trivially copyable elements.
template <typename T>
std::span<const std::byte> bytes_of(std::span<const T> elements) {
  return std::as_bytes(elements);
}
inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace longshore
