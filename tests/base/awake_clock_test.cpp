// Goal: limits of time do not pass while a process is suspended, and pass otherwise.
#include "base/awake_clock.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

using namespace std::chrono_literals;

// The clock stands still in a suspension, whoever asks first behind it.
TEST(AwakeClock, StandsStillInASuspension) {
  for (const bool ticks_first : {false, true}) {
    AwakeTime time;
    time.begin(100s);
    EXPECT_EQ(time.at(100s + 300ms), 100s + 300ms);
    time.tick(101s);
    // Suspended from here on, for an hour.
    if (ticks_first) time.tick(101s + 1h);
    EXPECT_EQ(time.at(101s + 1h), 102s);
    time.tick(101s + 1h);
    EXPECT_EQ(time.at(101s + 1h + 400ms), 102s + 400ms);
  }
}

// Ticks in time change nothing, so that a limit passes.
TEST(AwakeClock, RunsWhileTheProcessRuns) {
  AwakeTime time;
  time.begin(5s);
  for (int tick = 1; tick <= 100; ++tick) time.tick(5s + tick * 900ms);
  EXPECT_EQ(time.at(95s + 200ms), 95s + 200ms);
}

// The clock never runs backwards, with or without a thread that ticks.
TEST(AwakeClock, NeverRunsBackwards) {
  AwakeTime time;
  AwakeTime::Duration before = time.at(1s);
  const auto expect_later = [&](AwakeTime::Duration steady) {
    EXPECT_GE(time.at(steady), before);
    before = time.at(steady);
  };
  time.begin(2s);
  expect_later(2s);
  expect_later(10s);
  time.begin(11s);
  expect_later(11s);
  time.tick(30s);
  expect_later(30s);
  time.end(31s);
  expect_later(31s);
  time.end(60s);
  expect_later(60s);
  expect_later(90s);
  EXPECT_EQ(time.at(91s) - time.at(90s), 1s) << "a steady clock without a thread that ticks";
}

}  // namespace
}  // namespace longshore
