#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/open_retrying.h"
#include "base/pipe_writer.h"

namespace longshore {
namespace {

// Linux transfers at most 2^31 - 4096 bytes per call.
constexpr size_t kMaxTransfer = size_t{1} << 30;
// A pipe that has no writer after this time is treated as abandoned.
constexpr std::chrono::seconds kPipePatience{10};

std::string at_offset(const char* operation, Bytes offset, size_t bytes) {
  return std::string(operation) + " (offset " + std::to_string(offset) + ", " +
         std::to_string(bytes) + " bytes)";
}

}  // namespace

UniqueFd::UniqueFd(UniqueFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

void UniqueFd::reset() {
  // Linux frees the descriptor even when close() fails: never retry.
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

UniqueFd open_for_reading(const std::string& path) {
  UniqueFd fd(open_retrying(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0), path);
  if (!fd.valid()) throw IoError("open", path, errno);
  file_bytes(fd);  // throws unless it is a regular file
  return fd;
}

UniqueFd create_file(const std::string& path) {
  UniqueFd fd(open_retrying(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), path);
  if (!fd.valid()) throw IoError("create", path, errno);
  return fd;
}

Bytes file_bytes(const UniqueFd& fd) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) throw IoError("stat", fd.path(), errno);
  if (!S_ISREG(status.st_mode)) {
    const bool directory = S_ISDIR(status.st_mode);
    throw IoError("open " + fd.path() + (directory ? ": is a directory" : ": not a regular file"));
  }
  return status.st_size;
}

void read_exact_at(const UniqueFd& fd, Bytes offset, std::span<std::byte> into) {
  LONGSHORE_CHECK(offset >= 0) << offset;
  const size_t wanted = into.size();
  const Bytes start = offset;
  while (!into.empty()) {
    const size_t bytes = std::min(into.size(), kMaxTransfer);
    const ssize_t got = ::pread(fd.get(), into.data(), bytes, offset);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw IoError(at_offset("read", start, wanted), fd.path(), errno);
    }
    if (got == 0) {
      throw IoError(at_offset("read", start, wanted) + " " + fd.path() +
                    ": the file ends at byte " + std::to_string(offset));
    }
    into = into.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

void write_all(const UniqueFd& fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd.get(), bytes.data(), std::min(bytes.size(), kMaxTransfer));
    if (put < 0) {
      if (errno == EINTR) continue;
      throw IoError("write", fd.path(), errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void write_all(const UniqueFd& fd, std::string_view text) {
  write_all(fd, bytes_of(text));
}

void write_exact_at(const UniqueFd& fd, Bytes offset, std::span<const std::byte> bytes) {
  LONGSHORE_CHECK(offset >= 0) << offset;
  const size_t wanted = bytes.size();
  const Bytes start = offset;
  while (!bytes.empty()) {
    const size_t part = std::min(bytes.size(), kMaxTransfer);
    const ssize_t put = ::pwrite(fd.get(), bytes.data(), part, offset);
    if (put < 0) {
      if (errno == EINTR) continue;
      throw IoError(at_offset("write", start, wanted), fd.path(), errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += put;
  }
}

void sync_file(const UniqueFd& fd) {
  if (::fsync(fd.get()) != 0) throw IoError("fsync", fd.path(), errno);
}

void sync_directory(const std::string& path) {
  UniqueFd fd(open_retrying(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), path);
  if (!fd.valid()) throw IoError("open directory", path, errno);
  sync_file(fd);
}

std::string read_whole_file(const std::string& path, Bytes max_bytes) {
  return read_to_end(open_for_reading(path), max_bytes);
}

std::string read_input(const std::string& path, Bytes max_bytes) {
  const UniqueFd fd(open_retrying(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0), path);
  if (!fd.valid()) throw IoError("open", path, errno);
  wait_for_writer(fd, kPipePatience);
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    throw IoError("open", path, errno);
  }
  return read_to_end(fd, max_bytes);
}

UniqueFd duplicate_stdin() {
  UniqueFd fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0), "stdin");
  if (!fd.valid()) throw IoError("open", "stdin", errno);
  return fd;
}

std::string read_to_end(const UniqueFd& fd, Bytes max_bytes) {
  LONGSHORE_CHECK(max_bytes >= 0) << max_bytes;
  std::string text;
  std::array<char, size_t{1} << 16> block;
  while (true) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      throw IoError("read", fd.path(), errno);
    }
    if (got == 0) return text;
    if (static_cast<Bytes>(text.size()) > max_bytes - got) {
      throw DataError(fd.path() + ": longer than the limit of " + format_bytes(max_bytes));
    }
    text.append(block.data(), static_cast<size_t>(got));
  }
}

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw IoError("create directory", path, error.value());
}

void remove_tree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw IoError("remove", path, error.value());
}

}  // namespace longshore
