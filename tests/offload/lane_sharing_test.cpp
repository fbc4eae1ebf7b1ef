// Lanes that share cores and the link, against lanes that share nothing and against sums by hand.
#include "offload/schedule/schedule_simulation.h"

#include <gtest/gtest.h>

#include "tests/offload/schedule_cases.h"

namespace longshore {
namespace {

Op op(OpKind kind, int unit, std::vector<int32_t> after = {}) {
  Op made;
  made.kind = kind;
  made.unit = UnitId(unit);
  made.after = std::move(after);
  return made;
}

LaneThreads threads_of(double compute, double update) {
  LaneThreads threads = {};
  threads[static_cast<size_t>(Lane::kCompute)] = compute;
  threads[static_cast<size_t>(Lane::kUpdate)] = update;
  return threads;
}

// Goal: with cores for all lanes every operation ends as in the plain simulation, for every kind of
// schedule and any part of waiting.
TEST(LaneSharing, IsThePlainSimulationWhereCoresSuffice) {
  LaneThreads threads;
  threads.fill(2.0);
  int schedules = 0;
  for (const ScheduleCase& one : all_schedule_cases()) {
    const ModelSpec model = make_case_model(one);
    const StepSchedule schedule = build_schedule(make_case_inputs(one, model));
    std::vector<double> seconds;
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      seconds.push_back(static_cast<double>((i * 7919 + schedule.ops.size()) % 23) / 8.0);
    }
    const SimulatedPass plain = simulate_schedule(schedule, seconds);
    // The plain simulation knows the sum of waits and work.
    std::vector<OpSeconds> parts;
    for (size_t i = 0; i < seconds.size(); ++i) {
      const double waits = i % 3 == 0 ? seconds[i] * static_cast<double>(i % 2 + 1) / 2.0 : 0.0;
      parts.push_back({.waits = waits, .works = seconds[i] - waits});
    }
    const SimulatedPass shared = simulate_schedule(schedule, parts, threads, 1e6);
    ASSERT_NEAR(plain.seconds, shared.seconds, 1e-9) << one.name();
    for (size_t i = 0; i < seconds.size(); ++i) {
      ASSERT_NEAR(plain.ops[i].end, shared.ops[i].end, 1e-9) << one.name() << ", op " << i;
    }
    ++schedules;
  }
  EXPECT_GT(schedules, 1000);
}

// Lanes that work at the same time share the cores.
TEST(LaneSharing, WhoeverRunsTogetherSharesTheCores) {
  const StepSchedule schedule{{op(OpKind::kForward, 0), op(OpKind::kUpdate, 1)}};
  const std::vector<OpSeconds> seconds = {{.works = 3.0}, {.works = 1.0}};
  // Both want both cores, so they run at half speed until the update ends at 2; compute needs 2
  // more.
  const SimulatedPass pass = simulate_schedule(schedule, seconds, threads_of(2, 2), 2.0);
  EXPECT_DOUBLE_EQ(pass.ops[1].end, 2.0);
  EXPECT_DOUBLE_EQ(pass.seconds, 4.0);
  EXPECT_DOUBLE_EQ(pass.busy[static_cast<size_t>(Lane::kUpdate)], 2.0);
  EXPECT_DOUBLE_EQ(simulate_schedule(schedule, seconds, threads_of(2, 1), 3.0).seconds, 3.0);
}

// A waiting lane uses no core.
TEST(LaneSharing, NobodyWantsCoresForAWait) {
  const StepSchedule schedule{{op(OpKind::kForward, 0), op(OpKind::kUpdate, 1)}};
  const std::vector<OpSeconds> seconds = {{.works = 3.0}, {.waits = 2.0, .works = 1.0}};
  // Compute has both cores until 2; then both lanes share until compute has done its last second.
  const SimulatedPass pass = simulate_schedule(schedule, seconds, threads_of(2, 2), 2.0);
  EXPECT_DOUBLE_EQ(pass.ops[0].end, 4.0);
  EXPECT_DOUBLE_EQ(pass.ops[1].end, 4.0);
  EXPECT_DOUBLE_EQ(pass.busy[static_cast<size_t>(Lane::kUpdate)], 4.0);
}

// Collectives share the link and use no core of compute.
TEST(LaneSharing, CollectivesShareTheLinkAndNoCore) {
  const StepSchedule schedule{
      {op(OpKind::kGather, 0), op(OpKind::kReduce, 1), op(OpKind::kForward, 2)}};
  const std::vector<OpSeconds> seconds = {
      {.moves = 3.0}, {.waits = 1.0, .moves = 1.0, .works = 1.0}, {.works = 2.0}};
  LaneThreads threads = threads_of(1, 1);
  threads[static_cast<size_t>(Lane::kReduce)] = 1.0;
  // The gather has the link until 1; both share it until the sum's second is moved at 3, and the
  // gather ends at 4. Compute has its core all the time.
  const SimulatedPass pass = simulate_schedule(schedule, seconds, threads, 1.0);
  EXPECT_DOUBLE_EQ(pass.ops[0].end, 4.0);
  EXPECT_DOUBLE_EQ(pass.ops[1].end, 4.0);
  EXPECT_DOUBLE_EQ(pass.ops[2].end, 2.0);
}

// An operation that waits for a drive uses no core.
TEST(LaneSharing, WhatWaitsForADriveWantsNoCore) {
  const StepSchedule schedule{{op(OpKind::kForward, 0), op(OpKind::kReadState, 1)}};
  const std::vector<OpSeconds> seconds = {{.works = 3.0}, {.works = 2.0}};
  const SimulatedPass pass = simulate_schedule(schedule, seconds, threads_of(2, 2), 2.0);
  EXPECT_DOUBLE_EQ(pass.ops[0].end, 3.0);
  EXPECT_DOUBLE_EQ(pass.ops[1].end, 2.0);
}

}  // namespace
}  // namespace longshore
