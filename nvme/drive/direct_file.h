// DirectFile: one preallocated file per drive, opened for direct I/O and locked for this process
// alone. Owned by whoever opens block files on it; it must outlive them. The lock lies on the open
// file, so that it ends only when the last I/O of a killed process has landed.
#pragma once

#include <chrono>
#include <string>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

struct DirectFileOptions {
  std::string path;
  // 0: the file must exist, and its size is taken. Else it is made, or grown to this size; a larger
  // one stays as it is.
  Bytes size_bytes = 0;
  // How long the lock of another process is waited for.
  std::chrono::milliseconds lock_wait = std::chrono::seconds(5);
};

class DirectFile {
 public:
  // ConfigError where another process holds the file; DoesNotFitError, with the missing bytes,
  // where the file system is too full (what was taken meanwhile is given back); IoError.
  explicit DirectFile(const DirectFileOptions& options);

  const UniqueFd& fd() const { return fd_; }
  const std::string& path() const { return fd_.path(); }
  Bytes size_bytes() const { return size_bytes_; }
  // False where the file system has no O_DIRECT (tmpfs): the page cache is used then.
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
