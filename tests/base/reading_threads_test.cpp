// Reading threads: each part is read once, as many at a time as promised, and failures end the
// call.
#include "base/reading_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

// Every index is worked on once, whether there are fewer of them than threads or more.
TEST(ReadingThreads, WorkOnEachPartOnce) {
  for (const int64_t count : {0, 1, kReadingThreads - 1, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    on_reading_threads(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
    for (const auto& one : calls) EXPECT_EQ(one, 1) << count;
  }
}

// kReadingThreads reads are in flight at once: each waits here until all have begun.
TEST(ReadingThreads, HaveAllTheirReadsInFlight) {
  std::latch all(kReadingThreads);
  on_reading_threads(kReadingThreads, [&](int64_t) { all.arrive_and_wait(); });
}

// The first failure reaches the caller after all threads have ended, and no further part begins.
TEST(ReadingThreads, EndWithTheFirstFailure) {
  std::atomic<int64_t> calls = 0;
  EXPECT_THROW(on_reading_threads(int64_t{1} << 60,
                                  [&](int64_t i) {
                                    ++calls;
                                    if (i == 3) throw DataError("part 3");
                                  }),
               DataError);
  EXPECT_GE(calls, 4);
}

}  // namespace
}  // namespace longshore
