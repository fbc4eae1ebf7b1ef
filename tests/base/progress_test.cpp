// Progress of long work. Goal: it shows rate and remaining time, is silent for short work, and is
// plain when the output is not a terminal.
#include "base/log.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

Progress::Clock::time_point g_now{};

Progress::Clock::time_point now() {
  return g_now;
}

// A progress line has share, bytes, rate and remaining time.
TEST(Progress, HasItsShareRateAndWhatIsLeft) {
  EXPECT_EQ(format_progress("exporting", kGiB, 4 * kGiB, 2.0),
            "exporting  25 %  1.0 GiB of 4.0 GiB  512.0 MiB/s  ETA 0:06");
  EXPECT_EQ(format_progress("loading", kMiB, 4 * kGiB, 2.0),
            "loading  0 %  1.0 MiB of 4.0 GiB  512.0 KiB/s  ETA 2:16:30");
  EXPECT_EQ(format_progress("reading", 6 * kMiB, 0, 3.0), "reading  6.0 MiB  2.0 MiB/s");
  EXPECT_EQ(format_progress("a\x1b[2J", 0, 10, 0.0).find('\x1b'), std::string::npos);
  EXPECT_EQ(format_progress("more than all", 20, 10, 1.0),
            "more than all  100 %  20 B of 10 B  20 B/s  ETA 0:00");
}

// Progress prints nothing for two seconds, and then a line every 15 seconds.
TEST(Progress, IsSilentForTwoSecondsAndThenALineNowAndThen) {
  testing::internal::CaptureStderr();
  {
    Progress progress("writing", 100 * kMiB, now);
    for (int second = 0; second < 40; ++second) {
      progress.add(kMiB);
      g_now += std::chrono::seconds(1);
    }
    Progress short_work("short", kMiB, now);
    short_work.add(kMiB);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "writing  3 %  3.0 MiB of 100.0 MiB  1.5 MiB/s  ETA 1:05\n"
            "writing  18 %  18.0 MiB of 100.0 MiB  1.1 MiB/s  ETA 1:17\n"
            "writing  33 %  33.0 MiB of 100.0 MiB  1.0 MiB/s  ETA 1:05\n");
}

}  // namespace
}  // namespace longshore
