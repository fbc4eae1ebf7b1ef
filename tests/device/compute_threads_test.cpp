// LibTorch's threads run our loops.
#include "device/compute_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace longshore {
namespace {

// ThreadSanitizer does not see OpenMP's barriers, so there the loops run on one thread.
#if defined(__SANITIZE_THREAD__)
constexpr int kThreads = 1;
#else
constexpr int kThreads = 3;
#endif

class ParallelFor : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(kThreads); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

// Goal: each item is in one call, and the calls run on several threads with numbers of their own.
// Compiled without OpenMP, LibTorch's template would run all of it on the calling thread.
TEST_F(ParallelFor, SeveralThreadsShareTheItems) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int> numbers;
  std::vector<int> visits(9, 0);
  parallel_for(0, 9, 1, [&](int64_t begin, int64_t end) {
    const std::scoped_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    numbers.insert(parallel_thread());
    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
  });
  EXPECT_EQ(visits, std::vector<int>(9, 1));
  EXPECT_EQ(std::ssize(threads), kThreads);
  EXPECT_EQ(std::ssize(numbers), kThreads);
  EXPECT_LT(*numbers.rbegin(), parallel_threads());
}

// Goal: what one call throws reaches the caller.
TEST_F(ParallelFor, AnExceptionReachesTheCaller) {
  EXPECT_THROW(parallel_for(0, 9, 1,
                            [](int64_t, int64_t end) {
                              if (end == 9) throw std::runtime_error("of the last part");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace longshore
