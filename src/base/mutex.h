// Mutex, MutexLock and Condition: those of the standard library, with annotations that clang checks
// at compile time (-Wthread-safety, scripts/dev/lock_check). A member says which mutex protects it
// (LONGSHORE_GUARDED_BY), and a function, or the predicate of a wait, which one its caller holds
// (LONGSHORE_REQUIRES). Other compilers ignore the annotations.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define LONGSHORE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define LONGSHORE_THREAD_ANNOTATION(x)
#endif
#define LONGSHORE_GUARDED_BY(mutex) LONGSHORE_THREAD_ANNOTATION(guarded_by(mutex))
#define LONGSHORE_REQUIRES(...) LONGSHORE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define LONGSHORE_NO_THREAD_ANALYSIS LONGSHORE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace longshore {

class LONGSHORE_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex for its lifetime, apart from the time between unlock() and lock().
class LONGSHORE_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LONGSHORE_THREAD_ANNOTATION(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() LONGSHORE_THREAD_ANNOTATION(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void unlock() LONGSHORE_THREAD_ANNOTATION(release_capability()) { lock_.unlock(); }
  void lock() LONGSHORE_THREAD_ANNOTATION(acquire_capability()) { lock_.lock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

class Condition {
 public:
  // The mutex of `lock` is free during a wait; it is held afterwards, and while the predicate runs.
  template <typename Predicate>
  void wait(MutexLock& lock, const Predicate& done) LONGSHORE_NO_THREAD_ANALYSIS {
    condition_.wait(lock.lock_, done);
  }
  // Returns the predicate's last result.
  template <typename Rep, typename Period, typename Predicate>
  bool wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& longest,
                const Predicate& done) LONGSHORE_NO_THREAD_ANALYSIS {
    return condition_.wait_for(lock.lock_, longest, done);
  }
  // Waits for a notification; may return early without one.
  template <typename Rep, typename Period>
  void wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& longest) {
    condition_.wait_for(lock.lock_, longest);
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace longshore
