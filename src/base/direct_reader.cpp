#include "base/direct_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/errors.h"

namespace longshore {
namespace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Window = std::unique_ptr<std::byte[], FreeMemory>;

Window make_window(Bytes alignment, Bytes bytes) {
  void* const memory =
      std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return Window(static_cast<std::byte*>(memory));
}

// Opens the file that `fd` has open, even if its name now belongs to another one. O_NOATIME is for
// the file's owner alone.
UniqueFd open_direct(const UniqueFd& fd) {
  const std::string same = "/proc/self/fd/" + std::to_string(fd.get());
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_DIRECT;
  int opened = ::open(same.c_str(), kFlags | O_NOATIME);
  if (opened < 0 && errno == EPERM) opened = ::open(same.c_str(), kFlags);
  return {opened, fd.path()};
}

// Returns the alignment of direct I/O that the kernel reports, else that of every known drive; 0 if
// the kernel says that this file has none.
Bytes direct_block_bytes(const UniqueFd& fd) {
  Bytes needed = 4 * kKiB;
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    if (status.stx_dio_offset_align == 0) return 0;
    needed = std::max<Bytes>(needed, status.stx_dio_offset_align);
    needed = std::max<Bytes>(needed, status.stx_dio_mem_align);
  }
#endif
  return needed;
}

}  // namespace

DirectReader::DirectReader(const UniqueFd& fd) : buffered_(&fd), direct_(open_direct(fd)) {
  if (!direct_.valid()) return;
  block_bytes_ = direct_block_bytes(direct_);
  const bool usable =
      block_bytes_ > 0 && (block_bytes_ & (block_bytes_ - 1)) == 0 && block_bytes_ <= kWindowBytes;
  if (!usable) direct_.reset();
}

void DirectReader::read(Bytes offset, std::span<std::byte> out) const {
  if (!direct_.valid()) {
    read_exact_at(*buffered_, offset, out);
    ::posix_fadvise(buffered_->get(), offset, static_cast<Bytes>(out.size()), POSIX_FADV_DONTNEED);
    return;
  }
  LONGSHORE_CHECK(offset >= 0) << offset;
  const Window memory = make_window(block_bytes_, kWindowBytes);
  while (!out.empty()) {
    const Bytes begin = offset / block_bytes_ * block_bytes_;
    const Bytes skipped = offset - begin;
    const Bytes wanted = std::min(static_cast<Bytes>(out.size()), kWindowBytes - skipped);
    const auto window = static_cast<size_t>(align_up(skipped + wanted, block_bytes_));
    const Bytes got = read_window(begin, {memory.get(), window});
    if (got < skipped + wanted) {
      throw IoError("read " + std::to_string(wanted) + " bytes at " + std::to_string(offset) + " " +
                    buffered_->path() + ": the file ends at byte " + std::to_string(begin + got));
    }
    std::memcpy(out.data(), memory.get() + skipped, static_cast<size_t>(wanted));
    out = out.subspan(static_cast<size_t>(wanted));
    offset += wanted;
  }
}

// Returns the bytes read, which are fewer than the window only at the end of the file.
Bytes DirectReader::read_window(Bytes begin, std::span<std::byte> window) const {
  Bytes done = 0;
  while (done < static_cast<Bytes>(window.size())) {
    const std::span<std::byte> rest = window.subspan(static_cast<size_t>(done));
    const ssize_t got = ::pread(direct_.get(), rest.data(), rest.size(), begin + done);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw IoError("read", buffered_->path(), errno);
    }
    done += got;
    // A part of a block is what the file's end leaves.
    if (got == 0 || got % block_bytes_ != 0) return done;
  }
  return done;
}

}  // namespace longshore
