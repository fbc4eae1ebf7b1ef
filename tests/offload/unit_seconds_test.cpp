// A unit's time between and beyond the micro-batches at which it was measured.
#include "offload/forecast/step_forecast.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

// One measured point holds for all micro-batches.
TEST(UnitSeconds, OnePointHoldsForAllMicroBatches) {
  for (const int64_t noted : {0, 64}) {
    const std::vector<UnitPoint> points = {{noted, {0.25, 0.75}}};
    for (const int64_t positions : {1, 64, 100000}) {
      EXPECT_EQ(unit_seconds(points, positions), (UnitSeconds{0.25, 0.75})) << positions;
    }
  }
}

// Goal: two points give a fixed time per micro-batch and a time per position.
TEST(UnitSeconds, TwoPointsMakeALine) {
  // Forward takes 10 + 0.5 per position, backward 30 + 1.5.
  const std::vector<UnitPoint> points = {{10, {1.5, 4.5}}, {40, {0.75, 2.25}}};
  for (const auto& [positions, forward] :
       {std::pair(5, 2.5), {10, 1.5}, {20, 1.0}, {40, 0.75}, {100, 0.6}}) {
    const UnitSeconds seconds = unit_seconds(points, positions);
    EXPECT_NEAR(seconds.forward, forward, 1e-12) << positions;
    EXPECT_NEAR(seconds.backward, 3.0 * forward, 1e-12) << positions;
  }
}

// Goal: the fixed time is never negative, whatever was measured.
TEST(UnitSeconds, BeyondPointsWhoseLineStartsBelowNoTimeTheNearestHolds) {
  // The larger point takes more per position: 2 and 3, on a line that starts at -20.
  const std::vector<UnitPoint> points = {{10, {2.0, 2.0}}, {20, {3.0, 3.0}}};
  EXPECT_DOUBLE_EQ(unit_seconds(points, 1).forward, 2.0);
  EXPECT_DOUBLE_EQ(unit_seconds(points, 10).forward, 2.0);
  EXPECT_DOUBLE_EQ(unit_seconds(points, 16).forward, (-20.0 + 16.0 * 4.0) / 16.0);
  EXPECT_DOUBLE_EQ(unit_seconds(points, 20).forward, 3.0);
  EXPECT_DOUBLE_EQ(unit_seconds(points, 1000).forward, 3.0);
}

// Goal: if a larger micro-batch took no longer, even larger ones are not free.
TEST(UnitSeconds, BeyondPointsThatTookAlikeTheNearestHolds) {
  const std::vector<UnitPoint> points = {{10, {4.0, 4.0}}, {20, {1.5, 1.5}}};  // 40 s, 30 s
  EXPECT_DOUBLE_EQ(unit_seconds(points, 5).forward, 4.0);
  EXPECT_DOUBLE_EQ(unit_seconds(points, 20).forward, 1.5);
  EXPECT_DOUBLE_EQ(unit_seconds(points, 4000).forward, 1.5);
}

}  // namespace
}  // namespace longshore
