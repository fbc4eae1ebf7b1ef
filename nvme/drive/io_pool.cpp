#include "nvme/drive/io_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.h"
#include "base/mutex.h"

namespace longshore {
namespace {

int64_t perform(int fd, const BlockOp& op) {
  ssize_t result = 0;
  switch (op.kind) {
    case BlockOp::Kind::kRead:
      result = pread(fd, op.memory.data(), op.memory.size(), op.offset);
      break;
    case BlockOp::Kind::kWrite:
      result = pwrite(fd, op.memory.data(), op.memory.size(), op.offset);
      break;
    case BlockOp::Kind::kFlush:
      result = fdatasync(fd);
      break;
  }
  return result < 0 ? -errno : result;
}

}  // namespace

IoPool::IoPool(const DirectFile* file, int depth) : file_(file), depth_(depth) {
  LONGSHORE_CHECK(depth >= 1);
  for (int i = 0; i < std::min(depth, kMaxThreads); ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

IoPool::~IoPool() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  to_workers_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void IoPool::submit(const BlockOp& op) {
  {
    const MutexLock lock(mutex_);
    LONGSHORE_CHECK(in_flight_ < depth_);
    ++in_flight_;
    waiting_.push_back(op);
  }
  to_workers_.notify_one();
}

void IoPool::reap(std::vector<BlockCompletion>& completions) {
  MutexLock lock(mutex_);
  LONGSHORE_CHECK(in_flight_ > 0);
  to_owner_.wait(lock, [&]() LONGSHORE_REQUIRES(mutex_) { return !completed_.empty(); });
  in_flight_ -= static_cast<int>(completed_.size());
  completions.insert(completions.end(), completed_.begin(), completed_.end());
  completed_.clear();
}

void IoPool::work() {
  MutexLock lock(mutex_);
  for (;;) {
    to_workers_.wait(lock, [&]() LONGSHORE_REQUIRES(mutex_) { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const BlockOp op = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    const int64_t result = perform(file_->fd().get(), op);
    lock.lock();
    completed_.push_back({op.tag, result});
    to_owner_.notify_one();
  }
}

}  // namespace longshore
