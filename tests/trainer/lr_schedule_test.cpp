#include "trainer/loop/lr_schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

using Name = ScheduleSection::Name;

std::vector<double> rates(const ScheduleSection& schedule, int64_t total, double peak = 1.0) {
  std::vector<double> rates;
  for (int64_t step = 1; step <= total; ++step) {
    rates.push_back(lr_at(schedule, peak, Step(step), total));
  }
  return rates;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-15) << "at " << i;
}

// The constant rate stays at the peak after warm-up. All golden values are those of transformers'
// schedules (get_*_schedule_with_warmup, lr 1.0) for an optimizer's first, second, ... update.
TEST(LrSchedule, ConstantStaysAtThePeakAfterWarmUp) {
  expect_near(rates({.name = Name::kConstant, .warmup_steps = 4, .min_lr_ratio = 0.1}, 6),
              {0.0, 0.25, 0.5, 0.75, 1.0, 1.0});
}

// The linear rate falls as in transformers.
TEST(LrSchedule, LinearFallsAsTransformersDoes) {
  expect_near(rates({.name = Name::kLinear, .warmup_steps = 2, .min_lr_ratio = 0.0}, 7),
              {0.0, 0.5, 1.0, 0.8, 0.6, 0.4, 0.2});
}

// The linear rate falls towards the least rate.
TEST(LrSchedule, LinearEndsAboveTheLeastRate) {
  expect_near(rates({.name = Name::kLinear, .warmup_steps = 0, .min_lr_ratio = 0.5}, 5),
              {1.0, 0.9, 0.8, 0.7, 0.6});
}

// The cosine rate falls as in transformers.
TEST(LrSchedule, CosineFallsAsTransformersDoes) {
  expect_near(rates({.name = Name::kCosine, .warmup_steps = 2, .min_lr_ratio = 0.0}, 8),
              {0.0, 0.5, 1.0, 0.9330127018922193, 0.75, 0.5, 0.25, 0.06698729810778066});
}

// The cosine rate falls towards the least rate.
TEST(LrSchedule, CosineMixesInTheLeastRate) {
  expect_near(rates({.name = Name::kCosine, .warmup_steps = 1, .min_lr_ratio = 0.1}, 5),
              {0.0, 1.0, 0.8681980515339464, 0.55, 0.2318019484660536});
}

// WSD stays at the peak and falls in the last steps.
TEST(LrSchedule, WsdStaysAtThePeakAndFallsAtTheEnd) {
  expect_near(
      rates({.name = Name::kWsd, .warmup_steps = 2, .min_lr_ratio = 0.2, .decay_steps = 4}, 9),
      {0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4});
}

// Every rate scales with the peak.
TEST(LrSchedule, ScalesWithThePeak) {
  const ScheduleSection schedule{.name = Name::kLinear, .warmup_steps = 0, .min_lr_ratio = 0.0};
  EXPECT_DOUBLE_EQ(lr_at(schedule, 2e-5, Step(1), 4), 2e-5);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 2e-5, Step(3), 4), 1e-5);
}

// A warm-up in parts of the run has the steps that transformers' warmup_ratio gives.
TEST(LrSchedule, WarmsUpForAPartOfTheRun) {
  const auto steps = [](double ratio, int64_t total) {
    return ScheduleSection{.warmup_ratio = ratio}.warmup_in(total);
  };
  EXPECT_EQ(steps(0.1, 100), 10);
  EXPECT_EQ(steps(0.03, 101), 4) << "rounded up";
  EXPECT_EQ(steps(1.0, 7), 7);
  expect_near(rates({.name = Name::kLinear, .warmup_ratio = 0.25, .min_lr_ratio = 0.0}, 7),
              {0.0, 0.5, 1.0, 0.8, 0.6, 0.4, 0.2});
}

// Beyond the end the last rate is kept.
TEST(LrSchedule, HoldsTheLastRateBeyondTheEnd) {
  for (const Name name : {Name::kLinear, Name::kCosine, Name::kWsd}) {
    const ScheduleSection schedule{
        .name = name, .warmup_steps = 1, .min_lr_ratio = 0.25, .decay_steps = 2};
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1.0, Step(11), 10), 0.25);
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1.0, Step(1000), 10), 0.25);
  }
}

// A run of one step, or with nothing but warm-up, never divides by zero.
TEST(LrSchedule, NeverDividesByZero) {
  for (const Name name : {Name::kConstant, Name::kLinear, Name::kCosine, Name::kWsd}) {
    const ScheduleSection schedule{.name = name, .warmup_steps = 0, .min_lr_ratio = 0.0};
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1.0, Step(1), 1), 1.0);
    const ScheduleSection only_warmup{.name = name, .warmup_steps = 8, .min_lr_ratio = 0.0};
    EXPECT_DOUBLE_EQ(lr_at(only_warmup, 1.0, Step(3), 4), 0.5) << "the warm-up is shortened to 4";
    EXPECT_DOUBLE_EQ(lr_at({.name = name, .warmup_steps = 4, .min_lr_ratio = 0.5}, 1.0, Step(4), 4),
                     0.75);
  }
}

// Step 0 is refused.
TEST(LrSchedule, RefusesStepZero) {
  EXPECT_THROW(lr_at({}, 1.0, Step(0), 4), CheckFailure);
}

}  // namespace
}  // namespace longshore
