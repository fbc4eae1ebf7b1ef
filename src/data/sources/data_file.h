// DataFile: one open data file whose bytes must stay the same from the first read to the last. Its
// identity is the hash of its bytes. A note in the cache, named after the file's status, saves
// reading an unchanged file again. One owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

class DataFile {
 public:
  // `cache` is the directory of the notes.
  DataFile(UniqueFd fd, std::string cache);

  Bytes bytes() const { return status_.bytes; }
  // Returns a duplicate of the file's descriptor, at the file's beginning. Duplicates share the
  // offset, so a reader must have ended before the next one begins.
  UniqueFd from_begin() const;

  // Returns the hash in the cache's note for a file of this status; nullopt if the note is missing
  // or unusable.
  std::optional<uint64_t> noted() const;
  // Returns the hash of the bytes: the noted one, or else one computed from the bytes, with regular
  // calls of `report_progress`. Throws DataError if the file changes meanwhile.
  uint64_t content(const std::function<void()>& report_progress);
  // Throws DataError if the status shows that the file has changed since content(). Cheap: for
  // calls between content() and refuse_changes().
  void refuse_changed_status() const;
  // Throws DataError unless the bytes are those of content(). Files that had changed shortly before
  // that call are read once more.
  void refuse_changes(const std::function<void()>& report_progress) const;

 private:
  // Status: properties of a file that change with its bytes, unless that happens within the
  // granularity of the file system's clock.
  struct Status {
    int64_t device = 0, inode = 0, bytes = 0;
    int64_t modified[2] = {}, changed[2] = {};  // seconds and nanoseconds
    bool operator==(const Status&) const = default;
  };
  Status status() const;
  // Returns whether each later change of the bytes changes the status.
  bool shows_changes() const;
  uint64_t hash_bytes(const std::function<void()>& report_progress) const;
  std::string note() const;
  [[noreturn]] void refuse() const;

  UniqueFd fd_;
  std::string cache_;
  const Status status_;   // before anything was read
  bool certain_ = false;  // an equal status means equal bytes
  std::optional<uint64_t> content_;
};

}  // namespace longshore
