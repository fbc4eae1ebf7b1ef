// The figures that doctor makes of what it timed.
#include "trainer/doctor/measure_rates.h"

#include <gtest/gtest.h>

#include <limits>

namespace longshore {
namespace {

// Goal: of two sizes, the start is what both have in common, the rate what the larger takes more.
TEST(FitCollective, StartAndRateAreThoseOfTheLineThroughBoth) {
  const CollectiveRate rate = fit_collective({4 * kKiB, 1e-3}, {100 * kMiB, 11e-3});
  EXPECT_NEAR(rate.bytes, 10485350400.0, 1.0);
  EXPECT_NEAR(rate.start_seconds, 0.99960936e-3, 1e-10);
  // It gives both times again.
  EXPECT_NEAR(rate.start_seconds + 4.0 * kKiB / rate.bytes, 1e-3, 1e-12);
  EXPECT_NEAR(rate.start_seconds + 100.0 * kMiB / rate.bytes, 11e-3, 1e-12);
}

TEST(FitCollective, WithoutAStartThereIsNone) {
  const CollectiveRate rate = fit_collective({1000, 1e-6}, {1000000, 1e-3});
  EXPECT_NEAR(rate.bytes, 1e9, 1.0);
  EXPECT_NEAR(rate.start_seconds, 0.0, 1e-12);
  // Less for little than its share: bytes alone explain it, and no start is below 0.
  EXPECT_EQ(fit_collective({1000, 0.0}, {1000000, 1e-3}).start_seconds, 0.0);
}

// Goal: noise never makes a rate that is below 0 or without end.
TEST(FitCollective, TimesThatDoNotDifferLeaveATenthForTheBytes) {
  for (const double little : {10e-3, 9.5e-3, 30e-3}) {
    const CollectiveRate rate = fit_collective({0, little}, {1000000, 10e-3});
    EXPECT_NEAR(rate.bytes, 1e9, 1.0) << little;
    EXPECT_NEAR(rate.start_seconds, 9e-3, 1e-12) << little;
  }
}

TEST(FitCollective, NothingIsMadeOfNoTime) {
  const double no_number = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(fit_collective({4096, 1e-3}, {1000000, 0.0}), CollectiveRate{});
  EXPECT_EQ(fit_collective({4096, 1e-3}, {1000000, no_number}), CollectiveRate{});
  EXPECT_EQ(fit_collective({4096, 1e-3}, {4096, 2e-3}), CollectiveRate{});
}

}  // namespace
}  // namespace longshore
