// IoPool: a BlockFile of threads that call pread, pwrite and fdatasync, for systems that block
// io_uring (containers). One thread owns it; its workers touch only their operations.
#pragma once

#include <deque>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "nvme/drive/block_file.h"

namespace longshore {

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
