// ReadingThreads: threads for work that mostly waits for a drive. A drive reaches its speed only
// with many reads in flight, more than there are cores: while some threads copy or check what they
// have read, the others keep the drive busy. So that it stays busy between two long ranges too, a
// caller may begin the next one while the last parts of the one before are still read. The owner of
// the files' tier owns it; any thread may call it.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace longshore {

class ReadingThreads {
 public:
  // The number of reads in flight.
  static constexpr int kThreads = 16;

  // Many parts that were begun together.
  class Reads {
    friend class ReadingThreads;
    std::function<void(int64_t)> work;
    int64_t count = 0, begun = 0, running = 0;
    std::exception_ptr failure;  // the first
  };

  ReadingThreads();
  // Finishes what has begun.
  ~ReadingThreads();
  ReadingThreads(const ReadingThreads&) = delete;
  ReadingThreads& operator=(const ReadingThreads&) = delete;

  // Calls work(i) once for every i in [0, count), in order, on all threads. Returns when the last
  // call has begun; after a failure no further one begins. Copies `work`.
  std::shared_ptr<Reads> begin(int64_t count, std::function<void(int64_t)> work);
  // Returns when all calls have ended, and rethrows the first exception.
  void finish(const Reads& reads);

 private:
  void serve();

  Mutex mutex_;  // also protects the fields of Reads
  Condition to_threads_;
  Condition to_callers_;
  std::deque<std::shared_ptr<Reads>> waiting_ LONGSHORE_GUARDED_BY(mutex_);  // have parts to begin
  bool stop_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace longshore
