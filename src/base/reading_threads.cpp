#include "base/reading_threads.h"

#include <utility>

namespace longshore {

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
  // HOST WAIT: what the caller begins next would only wait behind these parts.
  to_callers_.wait(lock, [&] { return reads->begun == reads->count; });
  return reads;
}

void ReadingThreads::finish(const Reads& reads) {
  MutexLock lock(mutex_);
  // HOST WAIT: the caller uses what is read.
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
