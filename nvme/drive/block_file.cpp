#include "nvme/drive/block_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/log.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr std::chrono::milliseconds kLockPoll{5};
constexpr auto kOwnLockWait = std::chrono::milliseconds(60'000);
constexpr Bytes kStatBlockBytes = 512;  // the unit of st_blocks
constexpr mode_t kMode = 0600;

// Returns the process that locked the file, from the kernel's lock list; 0 if it is not there, as
// locks of other machines are not.
long lock_holder(int fd) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return 0;
  const std::string wanted = formatted("%02x:%02x:%llu", major(status.st_dev), minor(status.st_dev),
                                       static_cast<unsigned long long>(status.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    char kind[16];
    char place[64];
    long pid = 0;
    const int fields = std::sscanf(line.c_str(), "%*s %15s %*s %*s %ld %63s", kind, &pid, place);
    if (fields == 3 && std::string(place) == wanted && pid > 0) return pid;
  }
  return 0;
}

Bytes free_bytes(int fd) {
  struct statvfs status{};
  if (fstatvfs(fd, &status) != 0) return 0;
  return static_cast<Bytes>(status.f_bavail) * static_cast<Bytes>(status.f_frsize);
}

Bytes allocated_bytes(int fd) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return 0;
  return static_cast<Bytes>(status.st_blocks) * kStatBlockBytes;
}

}  // namespace

std::string_view name_of(BlockOp::Kind kind) {
  switch (kind) {
    case BlockOp::Kind::kRead:
      return "read";
    case BlockOp::Kind::kWrite:
      return "write";
    case BlockOp::Kind::kFlush:
      return "flush";
  }
  return "?";
}

DirectFile::DirectFile(const DirectFileOptions& options) {
  open(options.path, options.size_bytes > 0);
  lock(options.lock_wait);
  check_alignment();
  if (options.size_bytes > 0) {
    preallocate(options.size_bytes);
  }
  size_bytes_ = file_bytes(fd_);
}

void DirectFile::open(const std::string& path, bool may_create) {
  created_ = may_create && access(path.c_str(), F_OK) != 0;
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (may_create ? O_CREAT : 0);
  int fd = ::open(path.c_str(), flags | O_DIRECT, kMode);
  if (fd < 0 && errno == EINVAL) {
    fd = ::open(path.c_str(), flags, kMode);
    direct_ = false;
    if (fd >= 0) log_warning(path + ": no direct I/O on this file system; slower, and takes RAM");
  }
  if (fd < 0) throw IoError("open", path, errno);
  fd_ = UniqueFd(fd, path);
  struct stat status{};
  if (fstat(fd, &status) != 0) throw IoError("stat", path, errno);
  if (status.st_nlink > 1) {
    throw IoError("open " + path +
                  ": the file has another name too (a hard link), and is not written to through "
                  "this one; remove it");
  }
}

void DirectFile::lock(std::chrono::milliseconds wait) {
  const auto begin = std::chrono::steady_clock::now();
  bool unlisted = false;  // the last look found no holder
  while (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw IoError("lock", path(), errno);
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= wait) {
      const long holder = lock_holder(fd_.get());
      // A lock that was given up since the attempt has no holder either, so it is tried once more.
      if (holder == 0 && !std::exchange(unlisted, true)) continue;
      // The kernel closes files of io_uring some time after this process has closed them.
      const bool own = holder == ::getpid();
      if (!own || waited >= std::max(kOwnLockWait, wait)) {
        throw ConfigError(path() + ": held by " +
                          (holder > 0 ? "process " + std::to_string(holder) : "another process") +
                          "; stop it first, or use another directory (offload.nvme)");
      }
    }
    std::this_thread::sleep_for(kLockPoll);
  }
}

void DirectFile::check_alignment() const {
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (statx(fd_.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return;
  const auto needed =
      static_cast<Bytes>(std::max(status.stx_dio_offset_align, status.stx_dio_mem_align));
  if (needed > kBlockBytes) {
    throw ConfigError(path() + ": direct I/O on this drive needs blocks of " +
                      format_bytes(needed) + ", Longshore uses " + format_bytes(kBlockBytes) +
                      "; use another drive");
  }
#endif
}

void DirectFile::preallocate(Bytes size_bytes) {
  const Bytes before = file_bytes(fd_);
  if (before > size_bytes) return;  // it may be another run's file
  refuse_if_too_large(size_bytes);
  int result = 0;
  do {
    result = fallocate(fd_.get(), 0, 0, size_bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    sync_file(fd_);
    return;
  }
  const int error = errno;
  if (error == EOPNOTSUPP && ftruncate(fd_.get(), size_bytes) == 0) return;
  // A failed preallocation keeps the space that it got, so the file is cut back.
  if (created_) unlink(path().c_str());
  if (ftruncate(fd_.get(), before) != 0) {
    throw IoError("truncate", path(), errno);
  }
  refuse_if_too_large(size_bytes);
  throw IoError("preallocate", path(), error);
}

// This check precedes the allocation, so that the file system is never filled up.
void DirectFile::refuse_if_too_large(Bytes size_bytes) const {
  const Bytes missing = size_bytes - allocated_bytes(fd_.get()) - free_bytes(fd_.get());
  if (missing <= 0) return;
  if (created_) unlink(path().c_str());
  throw DoesNotFitError(path() + ": needs " + format_bytes(size_bytes) + ", and " +
                        format_bytes(missing) +
                        " are missing on this file system; free them, or add a directory on "
                        "another drive to offload.nvme");
}

}  // namespace longshore
