#include "base/direct_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Window = std::unique_ptr<std::byte[], FreeMemory>;

// Returns the calling thread's window, which begins at a multiple of every block size. It is kept,
// because the first use of fresh memory takes as long as a copy.
std::byte* own_window() {
  constexpr auto kBytes = static_cast<size_t>(DirectReader::kWindowBytes);
  thread_local const Window window(static_cast<std::byte*>(std::aligned_alloc(kBytes, kBytes)));
  if (window == nullptr) throw std::bad_alloc();
  return window.get();
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

struct Alignment {
  Bytes file = 4 * kKiB;  // of offsets and sizes; it suits every known drive
  Bytes memory = 4 * kKiB;
};

// Returns the alignment of direct I/O that the kernel reports; zeros if the kernel says that this
// file has none.
Alignment direct_alignment(const UniqueFd& fd) {
  Alignment needed;
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    if (status.stx_dio_offset_align == 0) return {0, 0};
    needed.memory = status.stx_dio_mem_align;
    needed.file = std::max({needed.file, Bytes{status.stx_dio_offset_align}, needed.memory});
  }
#endif
  return needed;
}

bool is_power_of_two(Bytes value) {
  return value > 0 && (value & (value - 1)) == 0;
}

}  // namespace

DirectReader::DirectReader(const UniqueFd& fd) : buffered_(&fd), direct_(open_direct(fd)) {
  if (!direct_.valid()) return;
  const Alignment needed = direct_alignment(direct_);
  block_bytes_ = needed.file;
  memory_alignment_ = needed.memory;
  const bool usable = is_power_of_two(block_bytes_) && is_power_of_two(memory_alignment_) &&
                      block_bytes_ <= kWindowBytes;
  if (!usable) direct_.reset();
}

void DirectReader::read(Bytes offset, std::span<std::byte> out) const {
  if (!direct_.valid()) {
    read_exact_at(*buffered_, offset, out);
    ::posix_fadvise(buffered_->get(), offset, static_cast<Bytes>(out.size()), POSIX_FADV_DONTNEED);
    return;
  }
  LONGSHORE_CHECK(offset >= 0) << offset;
  const auto distance = static_cast<Bytes>(reinterpret_cast<uintptr_t>(out.data())) - offset;
  // A short range is one read into the window.
  const bool straight =
      static_cast<Bytes>(out.size()) >= kWindowBytes && distance % memory_alignment_ == 0;
  std::byte* const window = own_window();
  while (!out.empty()) {
    const auto left = static_cast<Bytes>(out.size());
    const Bytes skipped = offset % block_bytes_;
    Bytes wanted = 0, got = 0;
    if (straight && skipped == 0 && left >= block_bytes_) {
      wanted = left / block_bytes_ * block_bytes_;
      got = read_blocks(offset, out.first(static_cast<size_t>(wanted)));
    } else {
      wanted = std::min(left, (straight ? block_bytes_ : kWindowBytes) - skipped);
      const auto blocks = static_cast<size_t>(align_up(skipped + wanted, block_bytes_));
      got = read_blocks(offset - skipped, {window, blocks}) - skipped;
      if (got >= wanted) {
        std::memcpy(out.data(), window + skipped, static_cast<size_t>(wanted));
      }
    }
    if (got < wanted) {
      throw IoError("read " + std::to_string(wanted) + " bytes at " + std::to_string(offset) + " " +
                    buffered_->path() + ": the file ends at byte " + std::to_string(offset + got));
    }
    out = out.subspan(static_cast<size_t>(wanted));
    offset += wanted;
  }
}

// Returns the bytes read, which are fewer than all only at the end of the file.
Bytes DirectReader::read_blocks(Bytes begin, std::span<std::byte> blocks) const {
  Bytes done = 0;
  while (done < static_cast<Bytes>(blocks.size())) {
    const std::span<std::byte> rest = blocks.subspan(static_cast<size_t>(done));
    const ssize_t got = ::pread(direct_.get(), rest.data(), rest.size(), begin + done);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw IoError("read", buffered_->path(), errno);
    }
    // A read that ended inside a block continues at the block's beginning. Where that gives no
    // whole block, the file ends.
    const Bytes whole = got / block_bytes_ * block_bytes_;
    if (whole == 0) return done + got;
    done += whole;
  }
  return done;
}

ReadingThreads::ReadingThreads() {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { serve(); });
  }
}

ReadingThreads::~ReadingThreads() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  to_threads_.notify_all();
  threads_.clear();
}

std::shared_ptr<ReadingThreads::Reads> ReadingThreads::begin(int64_t count,
                                                             std::function<void(int64_t)> work) {
  auto reads = std::make_shared<Reads>();
  reads->work = std::move(work);
  reads->count = count;
  if (count <= 0) return reads;
  MutexLock lock(mutex_);
  waiting_.push_back(reads);
  to_threads_.notify_all();
  // HOST WAIT: reads that the caller begins next would only queue after these parts.
  to_callers_.wait(lock, [&] { return reads->begun == reads->count; });
  return reads;
}

void ReadingThreads::finish(const Reads& reads) {
  MutexLock lock(mutex_);
  // HOST WAIT: the caller uses the bytes.
  to_callers_.wait(lock, [&] { return reads.begun == reads.count && reads.running == 0; });
  if (reads.failure != nullptr) std::rethrow_exception(reads.failure);
}

void ReadingThreads::serve() {
  MutexLock lock(mutex_);
  while (true) {
    to_threads_.wait(lock,
                     [this]() LONGSHORE_REQUIRES(mutex_) { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::shared_ptr<Reads> reads = waiting_.front();
    const int64_t part = reads->begun++;
    ++reads->running;
    if (reads->begun == reads->count) {
      waiting_.pop_front();
      to_callers_.notify_all();
    }
    lock.unlock();
    std::exception_ptr failure;
    try {
      reads->work(part);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr && reads->failure == nullptr) {
      reads->failure = failure;
      std::erase(waiting_, reads);
      reads->begun = reads->count;
    }
    if (--reads->running == 0 || failure != nullptr) to_callers_.notify_all();
  }
}

}  // namespace longshore
