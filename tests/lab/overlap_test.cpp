// The benchmark of overlap: its bound, the schedules that it runs, and the timers that run them.
// Times are asserted of the simulation; a real run is asserted only to take no less.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/json.h"
#include "bench/lab/overlap.h"
#include "bench/lab/timer_run.h"
#include "offload/schedule/schedule_simulation.h"
#include "offload/schedule/schedule_validator.h"

namespace longshore {
namespace {

constexpr double kRounding = 1e-9;

TimedStepOptions ten_units(const UnitTimes& times, bool several_ranks, int64_t prefetch) {
  return {.units = 10, .several_ranks = several_ranks, .prefetch = prefetch, .times = times};
}

// The bound of a step is the busiest lane of forward plus that of backward.
TEST(StepBound, AddsTheBusiestLanesOfForwardAndBackward) {
  // One rank, bound by compute: 10 backward, 9 forward, the first update and fetch, last offload.
  const StepBound compute = bound_of(
      ten_units({.update = 1, .fetch = 2, .forward = 4, .backward = 12, .drain = 3}, false, 1));
  EXPECT_EQ(compute.pure, 9 * 4 + 10 * 12);
  EXPECT_EQ(compute.filled, (1 + 2 + 9 * 4) + (10 * 12 + 3));
  EXPECT_EQ(compute.wall, "forward, backward");
  // Bound by copies: forward fetches all units, backward those that two slots did not keep.
  const StepBound copies = bound_of(
      ten_units({.update = 1, .fetch = 20, .forward = 4, .backward = 12, .drain = 3}, false, 1));
  EXPECT_EQ(copies.pure, 10 * 20 + 8 * 20);
  EXPECT_EQ(copies.filled, (1 + 10 * 20) + (12 + 8 * 20 + 12 + 3));
  EXPECT_EQ(copies.wall, "fetch, fetch");
  // Two ranks, bound by updates, then by reductions.
  const StepBound ranks = bound_of(ten_units({.update = 9,
                                              .fetch = 2,
                                              .gather = 3,
                                              .forward = 4,
                                              .backward = 12,
                                              .reduce = 15,
                                              .drain = 5},
                                             true, 2));
  EXPECT_EQ(ranks.pure, 10 * 9 + 10 * 15);
  EXPECT_EQ(ranks.filled, (10 * 9 + 2 + 3) + (12 + 10 * 15 + 5));
  EXPECT_EQ(ranks.wall, "update, reduce");
}

// Goal: over the whole grid the simulated step is from 1.0 to 1.05 of the bound.
TEST(LabOverlap, TheScheduleReachesTheBoundOverTheGrid) {
  const auto all = measure_overlap({.simulate = true});
  ASSERT_EQ(all.size(), 250U);
  for (const OverlapFigures& f : all) {
    const std::string name = std::to_string(f.point.ranks) + " ranks, fetch " +
                             std::to_string(f.point.fetch) + ", update " +
                             std::to_string(f.point.update) + ", gradient " +
                             std::to_string(f.point.gradient);
    EXPECT_LE(f.step.simulated, 1.05 * f.bound.filled) << name;
    EXPECT_GE(f.step.simulated, f.bound.filled - kRounding) << name;
    EXPECT_GE(f.bound.filled, f.bound.pure) << name;
  }
}

// Goal: with state and parameters on drives one rank also reaches the bound. On two ranks the bound
// does not include that device and host slots fill up in rotation.
TEST(LabOverlap, TheScheduleReachesTheBoundWithDrives) {
  const auto all = measure_drives({.simulate = true});
  ASSERT_EQ(all.size(), 300U);
  for (const OverlapFigures& f : all) {
    const std::string name = std::to_string(f.point.ranks) + " ranks, other lanes " +
                             std::to_string(f.point.fetch) + ", read " +
                             std::to_string(*f.point.read_state) + ", write " +
                             std::to_string(*f.point.write_state) +
                             (f.point.read_parameters ? ", parameters on drives" : "");
    const bool exact = f.point.ranks == 1 || !f.point.read_parameters;
    EXPECT_LE(f.step.simulated, (exact ? 1.0 : 1.02) * f.bound.filled + kRounding) << name;
    EXPECT_GE(f.step.simulated, f.bound.filled - kRounding) << name;
    EXPECT_GE(f.bound.filled, f.bound.pure - kRounding) << name;
  }
}

// Goal: a commit costs no time if the writes are done before it and backward is at least as long.
TEST(LabOverlap, ACommitIsHiddenBehindBackward) {
  const LabOverlapOptions options;
  const ModelSpec model = make_equal_units(options.units);
  for (const int32_t ranks : {1, 2}) {
    TimedStepOptions step = step_options(options, {ranks, 0.25, 0.25, 0.25, 0.25, 0.25, {}});
    const auto seconds = [&](double commit) {
      step.times.commit = commit;
      const TimedStep timed = longshore_step(step, model);
      const double simulated = simulate_schedule(timed.schedule, timed.seconds).seconds;
      EXPECT_NEAR(simulated, bound_of(step).filled, kRounding) << ranks << ' ' << commit;
      return simulated;
    };
    EXPECT_NEAR(seconds(0.2), seconds(0.0), kRounding);
    EXPECT_GT(seconds(0.4), seconds(0.0));
  }
}

// Goal: with state on drives the schedule reaches the bound if each lane has a ratio of its own.
TEST(LabOverlap, TheScheduleReachesTheBoundOfStateOnDrivesOverTheGrid) {
  const LabOverlapOptions options;
  const ModelSpec model = make_equal_units(options.units);
  for (const int32_t ranks : {1, 2}) {
    for (int i = 0; i < 3 * 3 * 3 * 3 * 3; ++i) {
      constexpr std::array<double, 3> kRatios = {0.25, 1.0, 4.0};
      const auto ratio = [&, rest = i]() mutable {
        const double value = kRatios[static_cast<size_t>(rest % 3)];
        rest /= 3;
        return value;
      };
      auto next = ratio;
      OverlapPoint point{.ranks = ranks};
      point.fetch = next();
      point.update = next();
      point.gradient = next();
      point.read_state = next();
      point.write_state = next();
      const TimedStepOptions step = step_options(options, point);
      const TimedStep timed = longshore_step(step, model);
      EXPECT_NEAR(simulate_schedule(timed.schedule, timed.seconds).seconds, bound_of(step).filled,
                  kRounding)
          << ranks << " ranks, combination " << i;
    }
  }
}

// Goal: updates no longer than forward cost a step only the first unit's update.
TEST(LabOverlap, DeferredUpdatesHideBehindForward) {
  LabOverlapOptions options;
  options.simulate = true;
  options.ratios = {0.25, 0.5, 1.0, 2.0};
  for (const UpdateFigures& f : measure_updates(options)) {
    const double one = f.update_seconds / options.units;
    if (f.update <= 1.0) {
      EXPECT_NEAR(f.exposed(), one, kRounding) << f.update;
    } else {
      EXPECT_GT(f.exposed(), 10 * one) << f.update;
    }
  }
}

// Goal: with updates in backward two host gradient slots are as fast as one per unit, on the whole
// grid; one slot would be slower.
TEST(LabOverlap, TwoGradientsAtHomeAreAsFastAsAll) {
  const LabOverlapOptions options;
  const ModelSpec model = make_equal_units(options.units);
  double slowest_of_one = 0.0;
  for (const int32_t ranks : options.ranks) {
    for (const double fetch : options.ratios) {
      for (const double update : options.ratios) {
        for (const double gradient : options.ratios) {
          TimedStepOptions step = step_options(options, {ranks, fetch, update, gradient});
          step.overlap = UpdateOverlap::kBackward;
          const auto seconds = [&](int32_t ring) {
            step.gradient_ring = ring;
            const TimedStep timed = longshore_step(step, model);
            return simulate_schedule(timed.schedule, timed.seconds).seconds;
          };
          const double all = seconds(0);
          EXPECT_NEAR(seconds(2), all, kRounding)
              << ranks << " ranks, " << fetch << " " << update << " " << gradient;
          slowest_of_one = std::max(slowest_of_one, seconds(1) / all);
        }
      }
    }
  }
  EXPECT_GT(slowest_of_one, 1.2);
}

// Goal: the baselines' schedules are valid apart from their updates.
TEST(LabOverlap, PeersSchedulesAreValidApartFromTheirUpdates) {
  const ModelSpec model = make_equal_units(6);
  for (bool several_ranks : {false, true}) {
    const TimedStepOptions options{.units = 6, .several_ranks = several_ranks, .times = {}};
    for (const TimedStep& step : {fsdp2_step(options, model), deepspeed_step(options, model)}) {
      ScheduleInputs inputs;
      inputs.model = &model;
      inputs.gathers = inputs.reduces = several_ranks;
      inputs.gradient_buffers = 3;
      inputs.overlap = UpdateOverlap::kNone;
      inputs.executions.executions = {{UnitId(0), {}, {{UnitId(0), DeviceSlot(step.slots - 1)}}}};
      StepSchedule schedule = step.schedule;
      for (int i = 0; i < 6; ++i) {
        EXPECT_EQ(schedule.ops.back().kind, OpKind::kUpdate);
        schedule.ops.pop_back();
      }
      std::string findings;
      for (const auto& finding : validate_schedule(schedule, inputs)) {
        // A wait inside a lane is superfluous, not wrong.
        if (finding.text.find("of its own lane") == std::string::npos) findings += finding.text;
      }
      EXPECT_EQ(findings, "");
    }
  }
}

// The baselines are never faster in the simulation.
TEST(LabOverlap, PeersAreNeverFasterInTheSimulation) {
  const auto all = measure_peers({.simulate = true});
  ASSERT_EQ(all.size(), 10U);
  for (const PeerFigures& f : all) {
    for (const StepSeconds* peer : {&f.fsdp2, &f.deepspeed, &f.fsdp2_bytes, &f.deepspeed_bytes}) {
      EXPECT_GT(peer->simulated, f.longshore.simulated) << f.ranks << " ranks, " << f.ratio;
    }
  }
}

// The timers run on the real executor and take no less than simulated.
TEST(LabOverlap, RunsTimersOnTheRealExecutor) {
  LabOverlapOptions options;
  options.ratios = {1.0};
  options.units = 5;
  options.unit_milliseconds = 0.2;
  options.steps = 2;
  const auto all = measure_overlap(options);
  ASSERT_EQ(all.size(), 2U);
  for (const OverlapFigures& f : all) {
    ASSERT_TRUE(f.step.measured.has_value());
    EXPECT_GE(*f.step.measured, f.step.simulated);
  }
  for (const OverlapFigures& f : measure_drives(options)) {
    EXPECT_GE(f.step.measured.value(), f.step.simulated);
  }
  for (const PeerFigures& f : measure_peers(options)) {
    EXPECT_GE(f.fsdp2.measured.value(), f.fsdp2.simulated);
    EXPECT_GE(f.deepspeed.measured.value(), f.deepspeed.simulated);
  }
}

// Goal: without the validator the slot ring detects a broken schedule on all ranks.
TEST(LabOverlap, TheRingRefusesABrokenSchedule) {
  const ModelSpec model = make_equal_units(6);
  for (int32_t ranks : {1, 2}) {
    TimedStepOptions options{.units = 6, .several_ranks = ranks > 1, .times = {}};
    options.times = {.fetch = 2e-3, .gather = 2e-3, .forward = 1e-4, .backward = 1e-4};
    for (const OpKind broken : {OpKind::kForward, OpKind::kFetch}) {
      TimedStep step = longshore_step(options, model);
      // Compute takes a slot that is being filled, or a fetch takes a leased slot.
      if (broken == OpKind::kFetch) {
        for (double& seconds : step.seconds) seconds = seconds > 1e-3 ? 1e-4 : 2e-3;
      }
      for (Op& op : step.schedule.ops) {
        if (op.kind == broken) op.after.clear();
      }
      TimerRun run(&step, {.ranks = ranks});
      EXPECT_THROW(run.step_seconds(), CheckFailure) << ranks << " ranks, " << name_of(broken);
    }
  }
}

// The benchmark prints its results as JSON.
TEST(LabOverlap, PrintsWhatItFoundAsJson) {
  LabOverlapOptions options;
  options.ratios = {1.0};
  options.ranks = {2};
  options.peers = options.simulate = options.json = true;
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_lab_overlap(options), 0);
  const Json json = Json::parse(testing::internal::GetCapturedStdout());
  ASSERT_EQ(json["overlap"].size(), 1U);
  EXPECT_NEAR(json["overlap"][0]["share_of_filled"].get<double>(), 1.0, kRounding);
  EXPECT_FALSE(json["overlap"][0]["step"].contains("measured_seconds"));
  ASSERT_EQ(json["peers"].size(), 1U);
  EXPECT_GT(json["peers"][0]["fsdp2"]["simulated_seconds"], json["overlap"][0]["filled_seconds"]);
}

// Meaningless options are refused.
TEST(LabOverlap, RefusesOptionsThatMeanNothing) {
  EXPECT_THROW(measure_overlap({.ratios = {-1.0}}), ConfigError);
  EXPECT_THROW(measure_overlap({.ranks = {0}}), ConfigError);
  EXPECT_THROW(measure_overlap({.units = 1}), ConfigError);
  EXPECT_THROW(measure_overlap({.unit_milliseconds = 0.0}), ConfigError);
  EXPECT_THROW(measure_overlap({.steps = 0}), ConfigError);
}

}  // namespace
}  // namespace longshore
