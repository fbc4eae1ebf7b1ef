// The cache of prepared data on disk: locks, what was used when, and cleaning. A cache is a
// directory of entries, each named by its key: KEY.tok, KEY.partial while it is made, KEY.lock; and
// notes of what files hold, HASH.content. Safe in any number of processes at once; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

// The right to make an entry. Held as long as the object lives; the kernel frees it when the
// process ends, however it ends.
class EntryLock {
 public:
  // Waits for whoever has it.
  EntryLock(const std::string& path, const std::function<void()>& while_waiting);
  // Nothing where somebody has it.
  static std::optional<EntryLock> try_lock(const std::string& path);

 private:
  explicit EntryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Marks a prepared file as used now, and as in use while the descriptor lives; an invalid one where
// the file is not there, or not for long. A cache may be read-only or on a file system without
// locks: then nothing is marked.
UniqueFd use_entry(const std::string& path);

struct CacheCleaning {
  int64_t files = 0;
  Bytes bytes = 0;
  Bytes left_bytes = 0;
};
// Removes entries that nobody has open or makes, least recently used first, until the rest takes no
// more than `limit`. Touches nothing that is not named like an entry.
CacheCleaning clean_cache(const std::string& directory, Bytes limit);

}  // namespace longshore
