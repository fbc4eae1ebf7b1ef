#include "device/thread_stream.h"

#include <chrono>
#include <utility>

#include "base/hash.h"
#include "base/mutex.h"

namespace longshore {

// The point at which one task is done or has failed.
class Event::Point {
 public:
  void wait() {
    MutexLock lock(mutex_);
    reached_.wait(lock, [this]() LONGSHORE_REQUIRES(mutex_) { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  void finish(std::exception_ptr error) {
    {
      const MutexLock lock(mutex_);
      done_ = true;
      error_ = std::move(error);
    }
    reached_.notify_all();
  }

 private:
  Mutex mutex_;
  Condition reached_;
  bool done_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ LONGSHORE_GUARDED_BY(mutex_);
};

void Event::wait() const {
  if (point_) point_->wait();
}

ThreadStream::ThreadStream(std::string name, std::optional<StreamDelays> delays,
                           std::function<void()> prepare)
    : name_(std::move(name)),
      delays_(delays),
      thread_([this, prepare = std::move(prepare)] { run(prepare); }) {}

ThreadStream::~ThreadStream() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Event ThreadStream::enqueue(std::span<const Event> after, std::function<void()> work) {
  auto point = std::make_shared<Event::Point>();
  last_ = Event(point);
  {
    const MutexLock lock(mutex_);
    tasks_.push_back({{after.begin(), after.end()}, std::move(work), std::move(point)});
  }
  changed_.notify_one();
  return last_;
}

void ThreadStream::synchronize() {
  last_.wait();
}

void ThreadStream::run(const std::function<void()>& prepare) {
  std::exception_ptr failed;  // once set, no later task runs
  try {
    if (prepare) prepare();
  } catch (...) {
    failed = std::current_exception();
  }
  for (int64_t index = 0;; ++index) {
    Task task;
    {
      MutexLock lock(mutex_);
      changed_.wait(lock,
                    [this]() LONGSHORE_REQUIRES(mutex_) { return !tasks_.empty() || closing_; });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (!failed) {
      try {
        for (const Event& event : task.after) event.wait();
        pause(index);
        task.work();
      } catch (...) {
        failed = std::current_exception();
      }
    }
    // Frees everything the work holds before any thread learns that the task is done.
    task.work = nullptr;
    task.point->finish(failed);
  }
}

void ThreadStream::pause(int64_t index) const {
  if (!delays_) return;
  const uint64_t mixed = hash64(name_) ^ (delays_->seed * 0x9E3779B97F4A7C15u);
  const auto bits = philox4x32({static_cast<uint32_t>(index), 0, 0, 0},
                               {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)});
  const int64_t most = delays_->most_microseconds;
  // About half of the tasks start at once.
  if (most <= 0 || (bits[0] & 1) == 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(bits[1] % (most + 1)));
}

}  // namespace longshore
