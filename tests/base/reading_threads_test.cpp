// Reading threads: each part is read once, as many at a time as promised, and failures end the
// call.
#include "base/direct_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

// Every part is worked on once, whether there are fewer of them than threads or more.
TEST(ReadingThreads, WorkOnEachPartOnce) {
  ReadingThreads threads;
  for (const int64_t count : {0, 1, ReadingThreads::kThreads - 1, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    threads.finish(*threads.begin(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; }));
    for (const auto& one : calls) EXPECT_EQ(one, 1) << count;
  }
}

// All threads have a read in flight at once, also where they belong to two callers' ranges: each
// part waits here until as many have begun.
TEST(ReadingThreads, HaveAllTheirReadsInFlight) {
  ReadingThreads threads;
  std::latch all(ReadingThreads::kThreads);
  const auto work = [&all](int64_t) { all.arrive_and_wait(); };
  const auto first = threads.begin(ReadingThreads::kThreads - 3, work);
  const auto second = threads.begin(3, work);
  threads.finish(*second);
  threads.finish(*first);
}

// The first failure of a range reaches the caller that finishes it, after all its parts have ended;
// no further part begins, and other ranges go on.
TEST(ReadingThreads, EndARangeWithItsFirstFailure) {
  ReadingThreads threads;
  std::atomic<int64_t> calls = 0;
  const auto fails = threads.begin(int64_t{1} << 60, [&](int64_t i) {
    ++calls;
    if (i == 3) throw DataError("part 3");
  });
  EXPECT_THROW(threads.finish(*fails), DataError);
  EXPECT_GE(calls, 4);
  const int64_t ended = calls;
  std::atomic<int64_t> others = 0;
  threads.finish(*threads.begin(100, [&](int64_t) { ++others; }));
  EXPECT_EQ(others, 100);
  EXPECT_EQ(calls, ended);
}

}  // namespace
}  // namespace longshore
