#include "base/reading_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace longshore {

void on_reading_threads(int64_t count, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next = 0;
  Mutex mutex;
  std::exception_ptr first;
  const auto take = [&] {
    try {
      for (int64_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      next = count;
      const MutexLock lock(mutex);
      if (first == nullptr) first = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;  // the caller is one more
    const auto most = static_cast<size_t>(std::clamp<int64_t>(count - 1, 0, kReadingThreads - 1));
    while (others.size() < most) others.emplace_back(take);
    take();
    // HOST WAIT: other threads still read the last parts.
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace longshore
