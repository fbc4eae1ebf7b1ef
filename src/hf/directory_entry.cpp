#include "hf/directory_entry.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <memory>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr size_t kMaxEntries = 100'000;
// O_NONBLOCK keeps a pipe in the directory from blocking the open.
constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

std::string join_path(const UniqueFd& directory, const std::string& name) {
  return directory.path() + "/" + name;
}

std::string link_target(const UniqueFd& directory, const std::string& name) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlinkat(directory.get(), name.c_str(), target.data(), target.size());
  if (length < 0) throw IoError("read link", join_path(directory, name), errno);
  return std::string(target.data(), static_cast<size_t>(length));
}

bool is_digest(std::string_view name) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return (name.size() == 40 || name.size() == 64) && std::all_of(name.begin(), name.end(), is_hex);
}

// Accepts "../../blobs/NAME" with two or three steps up, and any path that ends in "/blobs/DIGEST".
bool leads_into_cache(std::string_view target) {
  constexpr std::string_view kBlobs = "blobs/";
  const size_t blobs = target.rfind(kBlobs);
  if (blobs == std::string_view::npos || blobs == 0 || target[blobs - 1] != '/') return false;
  const std::string_view name = target.substr(blobs + kBlobs.size());
  const std::string_view before = target.substr(0, blobs);
  if (before == "../../" || before == "../../../") return is_plain_file_name(name);
  return is_digest(name);
}

UniqueFd checked_regular(UniqueFd fd) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) throw IoError("stat", fd.path(), errno);
  if (!S_ISREG(status.st_mode)) throw DataError(fd.path() + ": not a regular file");
  return fd;
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > NAME_MAX || name.front() == '.') return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
}

UniqueFd open_directory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
  if (!fd.valid()) throw IoError("open directory", path, errno);
  return fd;
}

UniqueFd open_subdirectory(const UniqueFd& directory, const std::string& name) {
  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd fd(::openat(directory.get(), name.c_str(), flags), join_path(directory, name));
  if (!fd.valid()) throw IoError("open directory", fd.path(), errno);
  return fd;
}

UniqueFd open_entry(const UniqueFd& directory, const std::string& name, Links links) {
  const std::string path = join_path(directory, name);
  const int follow = links == Links::kAny ? 0 : O_NOFOLLOW;
  UniqueFd fd(::openat(directory.get(), name.c_str(), kReadFlags | follow), path);
  if (!fd.valid() && errno == ELOOP && links == Links::kCache) {
    const std::string target = link_target(directory, name);
    if (!leads_into_cache(target)) {
      throw DataError(path + ": a link to '" + printable(target) +
                      "'; only links into the Hugging Face cache are followed, put the file here");
    }
    fd = UniqueFd(::openat(directory.get(), target.c_str(), kReadFlags | O_NOFOLLOW), path);
  }
  if (!fd.valid()) throw IoError("open", path, errno);
  return checked_regular(std::move(fd));
}

bool entry_exists(const UniqueFd& directory, const std::string& name) {
  struct stat status{};
  return ::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

bool is_directory_entry(const UniqueFd& directory, const std::string& name) {
  struct stat status{};
  return ::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISDIR(status.st_mode);
}

std::vector<std::string> list_entries(const UniqueFd& directory) {
  // closedir closes its descriptor, so it gets its own.
  const int fd = ::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw IoError("open directory", directory.path(), errno);
  const auto close = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(::fdopendir(fd), close);
  if (stream == nullptr) {
    const int error_number = errno;
    ::close(fd);
    throw IoError("list", directory.path(), error_number);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* const entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    if (names.size() > kMaxEntries) {
      throw DataError(directory.path() + ": more than " + std::to_string(kMaxEntries) +
                      " entries; it is no model directory");
    }
  }
  if (errno != 0) throw IoError("list", directory.path(), errno);
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text(const UniqueFd& fd, Bytes max_bytes) {
  const Bytes bytes = file_bytes(fd);
  if (bytes > max_bytes) {
    throw DataError(fd.path() + ": " + format_bytes(bytes) + ", longer than the limit of " +
                    format_bytes(max_bytes));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  read_exact_at(fd, 0, std::as_writable_bytes(std::span<char>(text)));
  refuse_lfs_pointer(text, fd.path());
  return text;
}

}  // namespace longshore
