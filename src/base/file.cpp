#include "base/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"

namespace longshore {
namespace {

// Retries open(2) on EINTR; returns -1 and sets errno on failure, as open(2) does.
int open_retrying(const std::string& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Linux transfers at most 2^31 - 4096 bytes per call.
constexpr size_t kMaxTransfer = size_t{1} << 30;
// A pipe that has no writer after this time is treated as abandoned.
constexpr std::chrono::seconds kPipePatience{10};
// A longer wait is logged.
constexpr std::chrono::milliseconds kSilentWait{1000};

std::string at_offset(const char* operation, Bytes offset, size_t bytes) {
  return std::string(operation) + " (offset " + std::to_string(offset) + ", " +
         std::to_string(bytes) + " bytes)";
}

constexpr std::string_view kTemporaryMark = ".tmp.";

// A new file in the target's directory. It is removed unless it was renamed to the target.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target)
      : path_(target + std::string(kTemporaryMark) + hash_text(random_word())),
        fd_(open_own_file(path_, O_WRONLY | O_CREAT | O_EXCL)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) ::unlink(path_.c_str());
  }

  const UniqueFd& fd() const { return fd_; }
  void rename_to(const std::string& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) throw IoError("rename to", target, errno);
    renamed_ = true;
  }

 private:
  std::string path_;
  UniqueFd fd_;
  bool renamed_ = false;
};

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

bool is_named(const UniqueFd& fd) {
  struct stat opened{}, named{};
  return ::fstat(fd.get(), &opened) == 0 && ::lstat(fd.path().c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

FileIdentity identity_of(const UniqueFd& fd) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) throw IoError("stat", fd.path(), errno);
  constexpr int64_t kNanoseconds = 1'000'000'000;
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .modified = status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

std::string file_identity(const UniqueFd& fd) {
  const FileIdentity identity = identity_of(fd);
  return std::to_string(identity.device) + " " + std::to_string(identity.inode);
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

std::string parent_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void sync_directory(const std::string& path) {
  UniqueFd fd(open_retrying(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), path);
  if (!fd.valid()) throw IoError("open directory", path, errno);
  sync_file(fd);
}

std::string read_whole_file(const std::string& path, Bytes max_bytes) {
  std::string text = read_to_end(open_for_reading(path), max_bytes);
  refuse_lfs_pointer(text, path);
  return text;
}

void refuse_lfs_pointer(std::string_view begin, const std::string& path) {
  if (!begin.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw DataError(path + ": a Git LFS pointer, not the file itself; run git lfs pull");
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

void read_in_pieces(const UniqueFd& fd,
                    const std::function<void(std::span<const std::byte>)>& use) {
  const Bytes bytes = file_bytes(fd);
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kMiB, bytes)));
  for (Bytes begin = 0; begin < bytes; begin += kMiB) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(kMiB, bytes - begin)));
    read_exact_at(fd, begin, part);
    use(part);
  }
}

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::string word_behind(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return value;
  }
  return "";
}

std::string nearest_existing(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path path = fs::absolute(directory, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  while (path.has_relative_path() && !fs::exists(path, ignored)) path = path.parent_path();
  return path;
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

UniqueFd open_own_file(const std::string& path, int flags) {
  LONGSHORE_CHECK((flags & O_TRUNC) == 0) << "a file is cut after these checks";
  // O_NONBLOCK keeps the call from waiting for the other end of a pipe.
  UniqueFd fd(open_retrying(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644), path);
  if (!fd.valid()) {
    if (errno == ELOOP) {
      throw IoError("open " + path +
                    ": a symbolic link, which is not followed here; remove it, or put the file "
                    "itself there");
    }
    // ENXIO means a pipe without a reader.
    if (errno == ENXIO) throw IoError("open " + path + ": not a regular file");
    throw IoError("open", path, errno);
  }
  file_bytes(fd);  // throws unless it is a regular file
  struct stat status{};
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (writes && ::fstat(fd.get(), &status) == 0 && status.st_nlink > 1) {
    throw IoError("open " + path +
                  ": the file has another name too (a hard link), and is not written to through "
                  "this one; put a copy of it here, or remove it");
  }
  return fd;
}

std::string read_own_file(const std::string& path, Bytes max_bytes) {
  return read_to_end(open_own_file(path, O_RDONLY), max_bytes);
}

// base/file.h declares this function.
void write_file_durably(const std::string& path, std::string_view text) {
  TemporaryFile temporary(path);
  write_all(temporary.fd(), text);
  sync_file(temporary.fd());
  temporary.rename_to(path);
  sync_directory(parent_of(path));
}

void replace_file(const std::string& path, std::string_view text) {
  TemporaryFile temporary(path);
  write_all(temporary.fd(), text);
  temporary.rename_to(path);
}

void write_output_file(const std::string& path, std::string_view text) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return write_file_durably(path, text);
  const bool replaceable = S_ISREG(status.st_mode) && !is_symbolic_link(path);
  if (replaceable) return write_file_durably(path, text);
  const UniqueFd fd = create_file(path);
  write_all(fd, text);
  if (S_ISREG(status.st_mode)) sync_file(fd);
}

bool is_temporary_of(std::string_view name, std::string_view target) {
  if (!name.starts_with(target)) return false;
  name.remove_prefix(target.size());
  if (!name.starts_with(kTemporaryMark)) return false;
  return parse_hash(name.substr(kTemporaryMark.size())).has_value();
}

bool is_symbolic_link(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

void make_own_directory(const std::string& path) {
  if (is_symbolic_link(path)) {
    throw IoError(path +
                  ": a symbolic link, through which a run writes nothing; put a directory there "
                  "(the run's whole directory may be a link)");
  }
  make_directories(path);
}

void wait_for_writer(const UniqueFd& fd, std::chrono::milliseconds patience) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) throw IoError("look at", fd.path(), errno);
  if (!S_ISFIFO(status.st_mode)) return;
  const auto is_written = [&fd](std::chrono::milliseconds time) {
    struct pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
    int found = 0;
    do {
      found = ::poll(&wait, 1, static_cast<int>(time.count()));
    } while (found < 0 && errno == EINTR);
    return found != 0;
  };
  const std::chrono::milliseconds silent = std::min(patience, kSilentWait);
  if (is_written(silent)) return;
  if (silent < patience) log_info("waiting for what is written to the pipe " + fd.path());
  if (!is_written(patience - silent))
    throw IoError("read " + fd.path() + ": a pipe without a writer");
}

}  // namespace longshore
