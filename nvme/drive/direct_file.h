// DirectFile: one preallocated file per drive, opened for direct I/O and locked for this process.
// The owner opens block files on it, which it must outlive. The lock belongs to the open file, so
// it ends only after the last I/O of a killed process.
#pragma once

#include <chrono>
#include <string>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

struct DirectFileOptions {
  std::string path;
  // With 0 the file must exist and keeps its size. Otherwise it is created or grown to this size; a
  // larger file keeps its size.
  Bytes size_bytes = 0;
  // The time to wait for another process's lock.
  std::chrono::milliseconds lock_wait = std::chrono::seconds(5);
};

class DirectFile {
 public:
  // Throws ConfigError if another process holds the file; DoesNotFitError with the missing bytes if
  // the file system is too full (space allocated meanwhile is released); IoError.
  explicit DirectFile(const DirectFileOptions& options);

  const UniqueFd& fd() const { return fd_; }
  const std::string& path() const { return fd_.path(); }
  Bytes size_bytes() const { return size_bytes_; }
  // Returns false if the file system lacks O_DIRECT (tmpfs); I/O then uses the page cache.
  bool direct() const { return direct_; }

 private:
  void open(const std::string& path, bool may_create);
  void lock(std::chrono::milliseconds wait);
  void check_alignment() const;
  void preallocate(Bytes size_bytes);
  void refuse_if_too_large(Bytes size_bytes) const;

  UniqueFd fd_;
  Bytes size_bytes_ = 0;
  bool direct_ = true;
  bool created_ = false;
};

}  // namespace longshore
