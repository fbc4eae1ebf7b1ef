// Many simulated ranks. Goal: equal ranks take one rank's time, all wait for the slowest, and
// timers on real executors take what the simulation says.
#include "bench/lab/rank_simulation.h"

#include <gtest/gtest.h>

#include "bench/lab/overlap.h"
#include "bench/lab/scaling.h"
#include "bench/lab/timer_run.h"
#include "offload/schedule/schedule_simulation.h"

namespace longshore {
namespace {

constexpr double kRounding = 1e-9;

// Equal ranks take the time of one rank.
TEST(RankSimulation, AlikeRanksTakeOneRanksTime) {
  const LabOverlapOptions options;
  const ModelSpec model = make_equal_units(options.units);
  for (const double ratio : {0.25, 1.0, 4.0}) {
    for (const auto make : {longshore_step, fsdp2_step, deepspeed_step}) {
      const TimedStep step = make(step_options(options, {2, ratio, ratio, ratio}), model);
      const double one = simulate_schedule(step.schedule, step.seconds).seconds;
      EXPECT_NEAR(simulate_ranks(step, {.ranks = 8}), one, kRounding) << ratio;
      EXPECT_NEAR(simulate_ranks(step, {.ranks = 8, .shard_ranks = 4}), one, kRounding) << ratio;
    }
  }
}

// Goal: with gathers and reductions on one link no step is faster than the link. If nothing else
// takes time the link is the step; if the link takes almost none, the step is as without it.
TEST(RankSimulation, CollectivesShareTheirLink) {
  const LabOverlapOptions options;
  const ModelSpec model = make_equal_units(options.units);
  for (const auto make : {longshore_step, fsdp2_step, deepspeed_step}) {
    for (const double ratio : {0.01, 0.5, 1.0, 4.0}) {
      const TimedStep step = make(step_options(options, {2, 0.25, ratio, 0.25}), model);
      double link = 0.0;
      std::vector<OpSeconds> parts;
      for (size_t i = 0; i < step.seconds.size(); ++i) {
        const OpKind kind = step.schedule.ops[i].kind;
        const bool collective = kind == OpKind::kGather || kind == OpKind::kReduce;
        if (collective) link += step.seconds[i];
        parts.push_back(collective ? OpSeconds{.moves = step.seconds[i]}
                                   : OpSeconds{.works = step.seconds[i]});
      }
      const double apart = simulate_ranks(step, {.ranks = 8});
      const double shared = simulate_ranks(step, {.ranks = 8, .one_link = true});
      EXPECT_GE(shared, std::max(apart, link) - kRounding) << ratio;
      EXPECT_LE(shared, apart + link) << ratio;
      // The plan's simulation gives each collective a share of the link instead of exclusive use.
      const double plan = simulate_schedule(step.schedule, parts).seconds;
      EXPECT_NEAR(shared, plan, 0.05 * plan) << ratio;
      if (ratio < 0.1) {
        EXPECT_NEAR(shared, apart, 0.01 * apart);
      }
    }
  }
}

// All ranks wait for a slow rank and for random delays.
TEST(RankSimulation, AllWaitForTheSlowestAndForChance) {
  const LabOverlapOptions options;
  const ModelSpec model = make_equal_units(options.units);
  const TimedStep step = longshore_step(step_options(options, {2, 0.25, 0.25, 0.25}), model);
  const double even = simulate_ranks(step, {.ranks = 4});
  const double slow = simulate_ranks(step, {.ranks = 4, .slow_rank = 0.5});
  EXPECT_GT(slow, 1.4 * even) << "computation is what a step waits for here";
  EXPECT_LE(slow, 1.5 * even + kRounding);
  const double jittered = simulate_ranks(step, {.ranks = 4, .jitter = 0.1});
  EXPECT_GT(jittered, even);
  EXPECT_LE(jittered, 1.1 * even + kRounding);
  EXPECT_EQ(jittered, simulate_ranks(step, {.ranks = 4, .jitter = 0.1})) << "the same draws";
  EXPECT_GT(simulate_ranks(step, {.ranks = 64, .jitter = 0.1}), jittered) << "more draws";
}

// Goal: executors of eight ranks with one slow rank never take less than the simulation.
TEST(RankSimulation, TimersOfEightRanksTakeNoLess) {
  LabOverlapOptions options;
  options.units = 6;
  options.unit_milliseconds = 1.0;
  const ModelSpec model = make_equal_units(options.units);
  const TimedStep step = longshore_step(step_options(options, {8, 1.0, 0.5, 1.0}), model);
  std::vector<double> compute(8, 1.0 / 1.5);
  compute.back() = 1.0;
  TimerRun run(&step, {.ranks = 8, .compute = compute});
  run.step_seconds();
  TimedStep faster = step;
  for (size_t i = 0; i < faster.seconds.size(); ++i) {
    if (lane_of(faster.schedule.ops[i].kind) == Lane::kCompute) faster.seconds[i] /= 1.5;
  }
  EXPECT_GE(run.step_seconds(), simulate_ranks(faster, {.ranks = 8, .slow_rank = 0.5}) - 1e-6);
}

// The schedule is never slower than the baselines' on simulated machines.
TEST(LabScaling, LongshoreIsNeverBehindThePeersSchedules) {
  const std::vector<ScalingFigures> all = scale_on_paper({.tokens = {8192}});
  ASSERT_EQ(all.size(), 19u);
  for (const ScalingFigures& f : all) {
    EXPECT_GE(f.longshore, f.fsdp2 - kRounding) << f.machine << " " << f.nodes;
    EXPECT_GE(f.longshore, f.deepspeed - kRounding) << f.machine << " " << f.nodes;
    // The jitter of one rank and of many comes from different random numbers.
    EXPECT_LE(f.jittered, f.longshore * 1.01);
    if (f.nodes == 1) {
      EXPECT_GE(f.jittered, 7.5) << "of 8 without P2P";
    }
    EXPECT_LE(f.longshore, (f.nodes > 1 ? f.nodes : f.ranks) * 1.1);
  }
}

}  // namespace
}  // namespace longshore
