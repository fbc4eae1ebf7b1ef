#include "data/prepared_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLockPoll{100};

// Returns true if the path still names the open file; a cleaner may have removed it.
bool still_there(const UniqueFd& fd, const std::string& path) {
  struct ::stat opened{};
  struct ::stat named{};
  return ::fstat(fd.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Returns a descriptor that holds the lock, or an invalid one.
UniqueFd lock_now(const std::string& path) {
  // The names of entries follow from the data, so that others can put links there. A link is
  // refused, and a file that is there keeps its bytes.
  UniqueFd fd = open_own_file(path, O_WRONLY | O_CREAT);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) throw IoError("lock", path, errno);
    return {};
  }
  return still_there(fd, path) ? std::move(fd) : UniqueFd();
}

struct Entry {
  std::string path;
  bool partial = false;
  fs::file_time_type used;
  Bytes bytes = 0;
};

Bytes bytes_below(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return static_cast<Bytes>(fs::file_size(path, ignored));
  Bytes sum = 0;
  for (const auto& file : fs::directory_iterator(path, ignored)) {
    if (file.is_regular_file(ignored)) sum += static_cast<Bytes>(file.file_size(ignored));
  }
  return sum;
}

std::vector<Entry> entries_of(const std::string& directory) {
  std::vector<Entry> entries;
  std::error_code ignored;
  for (const auto& file : fs::directory_iterator(directory, ignored)) {
    const bool partial = file.path().extension() == ".partial";
    if (!partial && file.path().extension() != ".tok") continue;
    if (!parse_hash(file.path().stem().string())) continue;
    if (fs::is_symlink(file.symlink_status(ignored))) continue;
    entries.push_back(
        {file.path().string(), partial, file.last_write_time(ignored), bytes_below(file.path())});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.used != b.used ? a.used < b.used : a.path < b.path;
  });
  return entries;
}

// Returns false if another process has the entry open or makes it.
bool remove_entry(const Entry& entry) {
  const std::string lock_path = fs::path(entry.path).replace_extension(".lock").string();
  const std::optional<EntryLock> lock = EntryLock::try_lock(lock_path);
  if (!lock) return false;
  if (entry.partial) {
    remove_tree(entry.path);
  } else {
    const int raw = ::open(entry.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (raw < 0) return false;
    const UniqueFd fd(raw, entry.path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
    remove_tree(entry.path);
  }
  remove_tree(lock_path);
  return true;
}

}  // namespace

EntryLock::EntryLock(const std::string& path, const std::function<void()>& while_waiting)
    : fd_(lock_now(path)) {
  while (!fd_.valid()) {
    while_waiting();
    std::this_thread::sleep_for(kLockPoll);
    fd_ = lock_now(path);
  }
}

std::optional<EntryLock> EntryLock::try_lock(const std::string& path) {
  UniqueFd fd = lock_now(path);
  if (!fd.valid()) return std::nullopt;
  return EntryLock(std::move(fd));
}

UniqueFd use_entry(const std::string& path) {
  const int raw = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (raw < 0) return {};
  UniqueFd fd(raw, path);
  // EWOULDBLOCK: a cleaner is about to remove it. File systems without locks set other errors.
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return {};
  if (!still_there(fd, path)) return {};
  static_cast<void>(::futimens(fd.get(), nullptr));
  return fd;
}

CacheCleaning clean_cache(const std::string& directory, Bytes limit) {
  const std::vector<Entry> entries = entries_of(directory);
  CacheCleaning done;
  for (const Entry& entry : entries) done.left_bytes += entry.bytes;
  for (const Entry& entry : entries) {
    if (done.left_bytes <= limit) break;
    if (!remove_entry(entry)) continue;
    ++done.files;
    done.bytes += entry.bytes;
    done.left_bytes -= entry.bytes;
  }
  return done;
}

}  // namespace longshore
