#include "comm/store/serial_queue.h"

#include <utility>

#include "base/mutex.h"
#include "base/processor.h"

namespace longshore {

void SerialQueue::Task::run() {
  std::exception_ptr error;
  try {
    work_();
  } catch (...) {
    error = std::current_exception();
  }
  // The work's captures are released before any waiter learns that it is done.
  work_ = nullptr;
  const MutexLock lock(mutex_);
  error_ = error;
  done_ = true;
  finished_.notify_all();
}

bool SerialQueue::Task::wait_for(std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  return finished_.wait_for(lock, time, [this]() LONGSHORE_REQUIRES(mutex_) { return done_; });
}

std::exception_ptr SerialQueue::Task::error() {
  const MutexLock lock(mutex_);
  return error_;
}

SerialQueue::SerialQueue()
    : shared_(std::make_shared<Shared>()), thread_([shared = shared_] { run(shared); }) {}

SerialQueue::~SerialQueue() {
  {
    const MutexLock lock(shared_->mutex);
    shared_->closing = true;
    shared_->changed.notify_all();
    if (shared_->abandoned) {
      thread_.detach();
      return;
    }
  }
  thread_.join();
}

std::shared_ptr<SerialQueue::Task> SerialQueue::push(std::function<void()> work) {
  auto task = std::make_shared<Task>(std::move(work));
  const MutexLock lock(shared_->mutex);
  shared_->tasks.push_back(task);
  shared_->changed.notify_all();
  return task;
}

void SerialQueue::abandon() {
  const MutexLock lock(shared_->mutex);
  shared_->abandoned = true;
  shared_->changed.notify_all();
}

void SerialQueue::run(const std::shared_ptr<Shared>& shared) {
  ask_for_short_slices();
  for (;;) {
    std::shared_ptr<Task> task;
    {
      MutexLock lock(shared->mutex);
      shared->changed.wait(lock, [&]() LONGSHORE_REQUIRES(shared->mutex) {
        return shared->abandoned || shared->closing || !shared->tasks.empty();
      });
      if (shared->abandoned || shared->tasks.empty()) return;
      task = std::move(shared->tasks.front());
      shared->tasks.pop_front();
    }
    task->run();
  }
}

}  // namespace longshore
