#include "data/sources/data_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <ctime>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
// File systems round times, to 2 s at most.
constexpr int64_t kSettledSeconds = 3;

// Stores through a mapping change a file's times at the first store into each clean page. In a file
// system in memory they change no times.
bool in_memory(const UniqueFd& fd) {
  struct ::statfs system{};
  if (::fstatfs(fd.get(), &system) != 0) return true;
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
}

}  // namespace

DataFile::DataFile(UniqueFd fd, std::string cache)
    : fd_(std::move(fd)), cache_(std::move(cache)), status_(status()) {}

UniqueFd DataFile::from_begin() const {
  UniqueFd fd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0), fd_.path());
  if (!fd.valid() || ::lseek(fd.get(), 0, SEEK_SET) != 0) throw IoError("open", fd_.path(), errno);
  return fd;
}

DataFile::Status DataFile::status() const {
  struct ::stat found{};
  if (::fstat(fd_.get(), &found) != 0) throw IoError("stat", fd_.path(), errno);
  return {.device = static_cast<int64_t>(found.st_dev),
          .inode = static_cast<int64_t>(found.st_ino),
          .bytes = found.st_size,
          .modified = {found.st_mtim.tv_sec, found.st_mtim.tv_nsec},
          .changed = {found.st_ctim.tv_sec, found.st_ctim.tv_nsec}};
}

// The kernel alone sets the time of change, unlike the time of modification. After fsync all pages
// are clean, so that the next store into any of them changes the time.
bool DataFile::shows_changes() const {
  return !in_memory(fd_) && ::time(nullptr) - status_.changed[0] > kSettledSeconds &&
         ::fsync(fd_.get()) == 0;
}

std::string DataFile::note() const {
  const auto identity = std::as_bytes(std::span(&status_, 1));
  return cache_ + "/" + hash_text(hash64(identity)) + ".content";
}

std::optional<uint64_t> DataFile::noted() const {
  try {
    return parse_hash(read_own_file(note(), kKiB));
  } catch (const Error&) {
    return std::nullopt;  // no note, or none of ours: the file is read
  }
}

uint64_t DataFile::hash_bytes(const std::function<void()>& report_progress) const {
  Hasher hasher;
  std::vector<std::byte> piece(kPieceBytes);
  for (Bytes at = 0; at < bytes(); at += static_cast<Bytes>(piece.size())) {
    piece.resize(static_cast<size_t>(std::min(bytes() - at, static_cast<Bytes>(piece.size()))));
    try {
      read_exact_at(fd_, at, piece);
    } catch (const IoError&) {
      if (file_bytes(fd_) < bytes()) refuse();  // it was cut
      throw;
    }
    hasher.update(piece);
    report_progress();
  }
  return hasher.digest();
}

uint64_t DataFile::content(const std::function<void()>& report_progress) {
  content_ = noted();
  certain_ = content_.has_value();
  if (certain_) return *content_;
  // A status that was taken too soon after a change may be that of other bytes, too.
  const bool certain = shows_changes();
  content_ = hash_bytes(report_progress);
  if (status() != status_) refuse();
  certain_ = certain;
  if (!certain) return *content_;
  try {
    write_file_durably(note(), hash_text(*content_));
  } catch (const IoError&) {
    // The cache may be one that others have prepared; then the file is read once more next time.
  }
  return *content_;
}

void DataFile::refuse_changed_status() const {
  if (status() != status_) refuse();
}

void DataFile::refuse_changes(const std::function<void()>& report_progress) const {
  refuse_changed_status();
  if (!certain_ && hash_bytes(report_progress) != content_) refuse();
}

void DataFile::refuse() const {
  throw DataError(fd_.path() +
                  ": the file changed while it was read; start again when nothing writes to it");
}

}  // namespace longshore
