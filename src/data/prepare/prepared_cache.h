// The cache of prepared data on disk: locks, times of use, and cleaning. It is a directory with
// KEY.tok per entry, KEY.partial while an entry is made, KEY.lock, and HASH.content, which holds
// the content hash of a data file. Any number of processes and any thread may use it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

// EntryLock: the right to make an entry, owned by the object. The kernel releases it when the
// process ends in any way.
class EntryLock {
 public:
  // Waits until no other process holds the lock.
  EntryLock(const std::string& path, const std::function<void()>& while_waiting);
  // Returns nullopt if another process holds the lock.
  static std::optional<EntryLock> try_lock(const std::string& path);

 private:
  explicit EntryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Sets the file's time of use and marks it as in use until the descriptor closes. The result is
// invalid if the file does not exist or is being removed; IoError if it is no regular file. A
// read-only cache, or a file system without locks, is not marked.
UniqueFd use_entry(const std::string& path);

struct CacheCleaning {
  int64_t files = 0;
  Bytes bytes = 0;
  Bytes left_bytes = 0;
};
// Removes entries, least recently used first, until the rest uses at most `limit` bytes. Entries
// that are open or being made stay. Files without the name of an entry are not touched.
CacheCleaning clean_cache(const std::string& directory, Bytes limit);

}  // namespace longshore
