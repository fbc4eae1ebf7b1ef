// Times of a schedule by hand, and the operations that delayed its last one.
#include "offload/schedule/schedule_simulation.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace longshore {
namespace {

Op op(OpKind kind, int unit, std::vector<int32_t> after) {
  Op op;
  op.kind = kind;
  op.unit = UnitId(unit);
  op.after = std::move(after);
  return op;
}

// Fetches of 3 s beside computes of 2 s in two slots: the third fetch waits for the first compute.
StepSchedule make_schedule() {
  using enum OpKind;
  return {{op(kFetch, 0, {}), op(kFetch, 1, {}), op(kForward, 0, {0}), op(kFetch, 2, {2}),
           op(kForward, 1, {1}), op(kForward, 2, {3})}};
}

// Lanes run side by side, and waits delay operations.
TEST(ScheduleSimulation, RunsLanesSideBySide) {
  const std::vector<double> seconds = {3, 3, 2, 3, 2, 2};
  const SimulatedPass pass = simulate_schedule(make_schedule(), seconds);
  std::vector<double> begins, ends;
  for (const SimulatedOp& op : pass.ops) {
    begins.push_back(op.begin);
    ends.push_back(op.end);
  }
  EXPECT_EQ(begins, (std::vector<double>{0, 3, 3, 6, 6, 9}));
  EXPECT_EQ(ends, (std::vector<double>{3, 6, 5, 9, 8, 11}));
  EXPECT_EQ(pass.seconds, 11);
  EXPECT_EQ(pass.busy[static_cast<size_t>(Lane::kH2D)], 9);
  EXPECT_EQ(pass.busy[static_cast<size_t>(Lane::kCompute)], 6);
  EXPECT_EQ(critical_path(pass), (std::vector<int32_t>{0, 1, 3, 5}));
}

// The critical path lists the operations that delayed the last one.
TEST(ScheduleSimulation, NamesWhatHeldTheLastOperation) {
  const std::vector<double> slow_compute = {1, 1, 5, 1, 5, 5};
  EXPECT_EQ(critical_path(simulate_schedule(make_schedule(), slow_compute)),
            (std::vector<int32_t>{0, 2, 4, 5}));
  EXPECT_TRUE(critical_path({}).empty());
}

// Missing and negative times are refused.
TEST(ScheduleSimulation, RefusesTimesThatAreNone) {
  EXPECT_THROW(simulate_schedule(make_schedule(), std::vector<double>{1}), CheckFailure);
  EXPECT_THROW(simulate_schedule(make_schedule(), std::vector<double>{1, 1, -1, 1, 1, 1}),
               CheckFailure);
}

}  // namespace
}  // namespace longshore
