#include "data/prepare/prepared_cache.h"

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

// Returns a descriptor that holds the lock, or an invalid one.
UniqueFd lock_now(const std::string& path) {
  // The names of entries follow from the data, so that others can put links there, which are
  // refused.
  UniqueFd fd = open_own_file(path, O_WRONLY | O_CREAT);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) throw IoError("lock", path, errno);
    return {};
  }
  return is_named(fd) ? std::move(fd) : UniqueFd();  // a cleaner may have removed it
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
    const fs::file_type type = file.symlink_status(ignored).type();
    if (type != (partial ? fs::file_type::directory : fs::file_type::regular)) continue;
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
    try {
      const UniqueFd fd = open_own_file(entry.path, O_RDONLY);
      if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
      remove_tree(entry.path);
    } catch (const IoError&) {
      return false;  // another user's
    }
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
  UniqueFd fd;
  try {
    fd = open_own_file(path, O_RDONLY);
  } catch (const IoError& error) {
    // The result of this call decides that there is no file: a later check may find one that
    // another process has made since.
    if (error.error_number() == ENOENT) return {};
    throw;
  }
  // EWOULDBLOCK: a cleaner is about to remove it. File systems without locks set other errors.
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return {};
  if (!is_named(fd)) return {};
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
