// IoRing: a BlockFile over io_uring with a registered file and, within the memory-lock limit,
// registered memory; one ring per issuing thread and drive. Only the thread that made it may use
// it. It avoids SQPOLL (burns cores) and IOPOLL (needs poll queues, forbids flushes). IoPool works
// where a system blocks io_uring.
#pragma once

#include <liburing.h>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "nvme/drive/block_file.h"

namespace longshore {

struct IoRingOptions {
  int depth = 32;
  // The memory that most operations use; registered as far as the limit on locked memory allows.
  std::vector<std::span<std::byte>> memory = {};
};

class IoRing final : public BlockFile {
 public:
  // The maximum size of a registered buffer; the kernel refuses larger ones with EFAULT.
  static constexpr Bytes kMaxSlabBytes = kGiB;

  // Returns nullptr, with the cause in `reason`, if io_uring does not work on this system. Sets the
  // ring up, runs a no-op and reads the file's first block. `file` and the memory must outlive the
  // ring.
  static std::unique_ptr<IoRing> try_make(const DirectFile* file, const IoRingOptions& options,
                                          std::string& reason);
  ~IoRing() override;
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  const std::string& path() const override { return file_->path(); }
  std::string_view kind() const override { return "io_uring"; }
  Bytes size_bytes() const override { return file_->size_bytes(); }
  int depth() const override { return depth_; }
  void submit(const BlockOp& op) override;
  void reap(std::vector<BlockCompletion>& completions) override;

  // Returns the registered bytes; fewer than requested if the limit on locked memory was reached.
  Bytes registered_bytes() const;
  Bytes unregistered_bytes() const { return unregistered_bytes_; }

 private:
  struct Slab {
    std::span<std::byte> memory;
    int index = 0;  // in the ring's buffer table
  };

  IoRing(const DirectFile* file, int depth) : file_(file), depth_(depth) {}
  int set_up();
  void register_memory(const std::vector<std::span<std::byte>>& memory);
  int probe();
  io_uring_sqe* next_sqe();
  const Slab* slab_of(std::span<const std::byte> memory) const;
  void collect(std::vector<BlockCompletion>& completions);

  const DirectFile* file_;
  int depth_;
  io_uring ring_{};
  bool ring_exists_ = false;
  bool file_registered_ = false;
  std::vector<Slab> slabs_;
  Bytes unregistered_bytes_ = 0;
  int in_flight_ = 0;
};

// IoPool: a BlockFile of threads that call pread, pwrite and fdatasync, for systems that block
// io_uring (containers). One thread owns it; its workers touch only their operations.

class IoPool final : public BlockFile {
 public:
  // Direct I/O blocks its thread, so the depth is the number of threads.
  static constexpr int kMaxThreads = 16;

  // `file` must outlive the pool. `depth` >= 1 operations in flight.
  IoPool(const DirectFile* file, int depth);
  ~IoPool() override;

  const std::string& path() const override { return file_->path(); }
  std::string_view kind() const override { return "threads"; }
  Bytes size_bytes() const override { return file_->size_bytes(); }
  int depth() const override { return depth_; }
  void submit(const BlockOp& op) override;
  void reap(std::vector<BlockCompletion>& completions) override;

 private:
  void work();

  const DirectFile* file_;
  int depth_;
  Mutex mutex_;
  Condition to_workers_;
  Condition to_owner_;
  std::deque<BlockOp> waiting_ LONGSHORE_GUARDED_BY(mutex_);
  std::vector<BlockCompletion> completed_ LONGSHORE_GUARDED_BY(mutex_);
  int in_flight_ LONGSHORE_GUARDED_BY(mutex_) = 0;
  bool stop_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace longshore
