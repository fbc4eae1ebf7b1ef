// The rates that `check machine --rates` computes from its timings.
#include "trainer/machine/measure_rates.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

// Goal: start and rate are those of the line through two sizes.
TEST(FitCollective, StartAndRateAreThoseOfTheLineThroughBoth) {
  const CollectiveRate rate = fit_collective({4 * kKiB, 1e-3}, {100 * kMiB, 11e-3});
  EXPECT_NEAR(rate.bytes, 10485350400.0, 1.0);
  EXPECT_NEAR(rate.start_seconds, 0.99960936e-3, 1e-10);
  // The fit gives both times again.
  EXPECT_NEAR(rate.start_seconds + 4.0 * kKiB / rate.bytes, 1e-3, 1e-12);
  EXPECT_NEAR(rate.start_seconds + 100.0 * kMiB / rate.bytes, 11e-3, 1e-12);
}

// Goal: time that keeps a core busy is separated from time that waits for the network.
TEST(FitCollective, WhatKeepsACoreBusyIsToldFromWhatWaits) {
  const CollectiveRate rate = fit_collective({0, 4e-3, 1e-3}, {1000000, 14e-3, 3.5e-3});
  EXPECT_NEAR(rate.start_core_seconds, 1e-3, 1e-12);
  EXPECT_NEAR(rate.core_share, 0.25, 1e-9);
  // Two busy cores count as one, and no time is negative.
  const CollectiveRate busy = fit_collective({0, 4e-3, 9e-3}, {1000000, 14e-3, 30e-3});
  EXPECT_EQ(busy.start_core_seconds, busy.start_seconds);
  EXPECT_EQ(busy.core_share, 1.0);
  EXPECT_GT(fit_collective({0, 4e-3, 3e-3}, {1000000, 14e-3, 3e-3}).core_share, 0.0);
}

// Times proportional to bytes have no start.
TEST(FitCollective, WithoutAStartThereIsNone) {
  const CollectiveRate rate = fit_collective({1000, 1e-6}, {1000000, 1e-3});
  EXPECT_NEAR(rate.bytes, 1e9, 1.0);
  EXPECT_NEAR(rate.start_seconds, 0.0, 1e-12);
  // A small size that takes less than its share has a start of 0, never a negative one.
  EXPECT_EQ(fit_collective({1000, 0.0}, {1000000, 1e-3}).start_seconds, 0.0);
}

// Goal: noise never gives a negative or infinite rate.
TEST(FitCollective, TimesThatDoNotDifferLeaveATenthForTheBytes) {
  for (const double little : {10e-3, 9.5e-3, 30e-3}) {
    const CollectiveRate rate = fit_collective({0, little}, {1000000, 10e-3});
    EXPECT_NEAR(rate.bytes, 1e9, 1.0) << little;
    EXPECT_NEAR(rate.start_seconds, 9e-3, 1e-12) << little;
  }
}

// Times of zero or NaN give no rate.
TEST(FitCollective, NothingIsMadeOfNoTime) {
  const double no_number = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(fit_collective({4096, 1e-3}, {1000000, 0.0}), CollectiveRate{});
  EXPECT_EQ(fit_collective({4096, 1e-3}, {1000000, no_number}), CollectiveRate{});
  EXPECT_EQ(fit_collective({4096, 1e-3}, {4096, 2e-3}), CollectiveRate{});
}

// Goal: a run's units are measured at two micro-batches, its own among them.
TEST(MeasuredMicroBatches, AreTheRunsOwnAndAnother) {
  const ModelSpec model = fakes::make_small_model(3, false);
  const Machine machine = made_up_machine();
  PlanInputs inputs = made_up_inputs(model);  // 7 sequences a step
  using Sequences = std::vector<int64_t>;
  inputs.micro_batch = 3;
  EXPECT_EQ(measured_micro_batches(inputs, machine), (Sequences{1, 3}));
  inputs.micro_batch = 1;
  EXPECT_EQ(measured_micro_batches(inputs, machine), (Sequences{1, 4}));
  inputs.sequences_per_step = 3;
  EXPECT_EQ(measured_micro_batches(inputs, machine), (Sequences{1, 3}));
  inputs.sequences_per_step = 1;
  EXPECT_EQ(measured_micro_batches(inputs, machine), (Sequences{1}));
}

// Measured micro-batches fit the device.
TEST(MeasuredMicroBatches, FitTheDevice) {
  const ModelSpec model = fakes::make_small_model(3, false);
  const Machine machine = made_up_machine();
  PlanInputs inputs = made_up_inputs(model);
  const auto need = [&](int64_t sequences) {
    inputs.device_cap = std::nullopt;
    inputs.micro_batch = sequences;
    return draft_tier_plan(inputs, machine).device.total;
  };
  const Bytes one = need(1), two = need(2);
  ASSERT_LT(one, two);
  inputs.micro_batch = 1;
  inputs.device_cap = two;
  EXPECT_EQ(measured_micro_batches(inputs, machine), (std::vector<int64_t>{1, 2}));
  inputs.device_cap = one;
  EXPECT_EQ(measured_micro_batches(inputs, machine), (std::vector<int64_t>{1}));
}

// ---- Measurements beside other programs ----

// Goal: the share of other programs is the busy time that is not this process's, with steal;
// waiting for a disk is idle.
TEST(ShareOfOthers, IsWhatThisProcessDidNotTake) {
  const std::string before = "cpu  1000 10 100 5000 50 0 0 0 0 0\n";
  // In 1000 ticks of all cores: 400 user, 100 system, 200 steal, 250 idle, 50 waiting.
  const std::string after = "cpu  1400 10 200 5250 100 0 0 200 0 0\n";
  EXPECT_NEAR(share_of_others(before, after, 0.0, 100.0), 0.7, 1e-12);
  EXPECT_NEAR(share_of_others(before, after, 5.0, 100.0), 0.2, 1e-12);
  EXPECT_EQ(share_of_others(before, after, 50.0, 100.0), 0.0);
  EXPECT_EQ(share_of_others(before, before, 1.0, 100.0), 0.0);
  EXPECT_EQ(share_of_others("", "", 1.0, 100.0), 0.0);
}

// Goal: a calm measurement is used at once; a disturbed one is repeated, the calmer one is kept,
// and its source says how reliable it is.
TEST(CalmestRates, AreTakenAgainWhereOthersHadTheProcessor) {
  struct Try {
    double others, copy;
  };
  const auto measured = [](const std::vector<Try>& tries, int& taken, int& said) {
    taken = said = 0;
    return calmest_rates(
        [&] {
          const Try one = tries.at(static_cast<size_t>(taken++));
          TakenRates rates;
          rates.rates.source = "measured";
          rates.rates.copy = one.copy;
          rates.others = one.others;
          return rates;
        },
        [&said](const std::string&) { ++said; });
  };
  int taken = 0, said = 0;
  EXPECT_EQ(measured({{0.05, 1e9}}, taken, said).source, "measured");
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(said, 0);
  const MachineRates calm = measured({{0.9, 1e9}, {0.01, 3e9}}, taken, said);
  EXPECT_EQ(calm.source, "measured");
  EXPECT_EQ(calm.copy, 3e9);
  EXPECT_EQ(taken, 2);
  EXPECT_EQ(said, 1);
  const MachineRates busy = measured({{0.5, 4e9}, {0.84, 1e9}}, taken, said);
  EXPECT_EQ(busy.copy, 4e9);
  EXPECT_NE(busy.source.find("measured, unsure: other programs had 50 % of the processor, and two "
                             "tries differed by up to 4.0 times"),
            std::string::npos)
      << busy.source;
}

}  // namespace
}  // namespace longshore
