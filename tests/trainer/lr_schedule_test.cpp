#include "trainer/loop/lr_schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"
#include "config/schedule_table.h"

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

// The values of the next three tests are those of transformers 5.23: s.get_last_lr() of each step,
//   get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, 2, 10, num_cycles=2)
//   get_polynomial_decay_schedule_with_warmup(optimizer, 2, 7, lr_end=0.1, power=2.0)
//   get_inverse_sqrt_schedule(optimizer, 3)
// and so on, with torch.optim.SGD([...], lr=1.0). The cosine restarts as transformers' does, and is
// mixed with the least rate.
TEST(LrSchedule, CosineRestartsAsTransformersDoes) {
  const auto restarts = [](int64_t warmup, int64_t cycles, double least = 0.0) {
    return ScheduleSection{.name = Name::kCosineWithRestarts,
                           .warmup_steps = warmup,
                           .min_lr_ratio = least,
                           .cycles = cycles};
  };
  expect_near(rates(restarts(2, 2), 10),
              {0.0, 0.5, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627, 1.0, 0.8535533905932737,
               0.5, 0.14644660940672627});
  EXPECT_EQ(lr_at(restarts(2, 2), 1.0, Step(11), 10), 0.0);
  expect_near(rates(restarts(1, 3), 8),
              {0.0, 1.0, 0.6112604669781572, 0.04951556604879048, 0.8117449009293669,
               0.18825509907063342, 0.9504844339512096, 0.3887395330218433});
  expect_near(rates(restarts(0, 1), 5), {1.0, 0.9045084971874737, 0.6545084971874737,
                                         0.34549150281252633, 0.09549150281252633});
  EXPECT_NEAR(lr_at(restarts(2, 2, 0.2), 1.0, Step(5), 10), 0.6, 1e-15);
}

// The rate falls as a power of what is left, to lr_end of transformers, which is a rate.
TEST(LrSchedule, PolynomialFallsAsTransformersDoes) {
  const auto polynomial = [](int64_t warmup, double power, double least) {
    return ScheduleSection{
        .name = Name::kPolynomial, .warmup_steps = warmup, .min_lr_ratio = least, .power = power};
  };
  expect_near(rates(polynomial(2, 2.0, 0.1), 7),
              {0.0, 0.5, 1.0, 0.6760000000000002, 0.42400000000000004, 0.24400000000000005,
               0.13599999999999998});
  expect_near(rates(polynomial(0, 0.5, 0.0), 5), {1.0, 0.8944271909999159, 0.7745966692414834,
                                                  0.6324555320336759, 0.44721359549995787});
  expect_near(rates(polynomial(1, 1.0, 1e-7), 5), {0.0, 1.0, 0.750000025, 0.50000005, 0.250000075});
}

// The rate falls with the root of the steps, whatever the least rate is.
TEST(LrSchedule, InverseRootFallsAsTransformersDoes) {
  const auto root = [](int64_t warmup, int64_t timescale = 0) {
    return ScheduleSection{
        .name = Name::kInverseSqrt, .warmup_steps = warmup, .timescale = timescale};
  };
  expect_near(rates(root(3), 8),
              {0.0, 0.3333333333333333, 0.6666666666666666, 1.0, 0.8660254037844387,
               0.7745966692414834, 0.7071067811865475, 0.6546536707079771});
  expect_near(rates(root(2, 6), 8), {0.0, 0.5, 1.0, 0.9258200997725514, 0.8660254037844387,
                                     0.8164965809277261, 0.7745966692414834, 0.7385489458759964});
  expect_near(rates(root(0), 4), {1.0, 0.9999500037496877, 0.9999000149975006, 0.9998500337415648});
}

// WSD stays at the peak and falls in the last steps.
TEST(LrSchedule, WsdStaysAtThePeakAndFallsAtTheEnd) {
  expect_near(
      rates({.name = Name::kWsd, .warmup_steps = 2, .min_lr_ratio = 0.2, .decay_steps = 4}, 9),
      {0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4});
}

// The decay of WSD has the shapes of transformers 5.23:
//   get_wsd_schedule(optimizer, 2, 4, num_training_steps=9, decay_type=...)
//   get_wsd_schedule(optimizer, 0, 4, num_training_steps=6, decay_type=..., min_lr_ratio=0.2)
TEST(LrSchedule, WsdDecaysAsTransformersDoes) {
  using Decay = ScheduleSection::Decay;
  const auto wsd = [](Decay decay, int64_t warmup, double least) {
    return ScheduleSection{.name = Name::kWsd,
                           .warmup_steps = warmup,
                           .min_lr_ratio = least,
                           .decay_steps = 4,
                           .decay_type = decay};
  };
  expect_near(rates(wsd(Decay::kLinear, 2, 0.0), 9),
              {0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25});
  expect_near(rates(wsd(Decay::kLinear, 0, 0.2), 6), {1.0, 1.0, 1.0, 0.8, 0.6000000000000001, 0.4});
  expect_near(rates(wsd(Decay::kCosine, 2, 0.0), 9),
              {0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627});
  expect_near(rates(wsd(Decay::kCosine, 0, 0.2), 6),
              {1.0, 1.0, 1.0, 0.882842712474619, 0.6000000000000001, 0.317157287525381});
  expect_near(rates(wsd(Decay::kOneMinusSqrt, 2, 0.0), 9),
              {0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.2928932188134524, 0.1339745962155614});
  expect_near(rates(wsd(Decay::kOneMinusSqrt, 0, 0.2), 6),
              {1.0, 1.0, 1.0, 0.6000000000000001, 0.434314575050762, 0.30717967697244913});
  EXPECT_EQ(lr_at(wsd(Decay::kOneMinusSqrt, 2, 0.0), 1.0, Step(10), 9), 0.0);
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
  for (const Name name :
       {Name::kLinear, Name::kCosine, Name::kCosineWithRestarts, Name::kPolynomial, Name::kWsd}) {
    const ScheduleSection schedule{
        .name = name, .warmup_steps = 1, .min_lr_ratio = 0.25, .decay_steps = 2};
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1.0, Step(11), 10), 0.25);
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1.0, Step(1000), 10), 0.25);
  }
}

// A run of one step, or with nothing but warm-up, never divides by zero.
TEST(LrSchedule, NeverDividesByZero) {
  for (const LrSchedule& row : lr_schedules()) {
    const Name name = row.kind;
    const ScheduleSection schedule{.name = name, .warmup_steps = 0, .min_lr_ratio = 0.0};
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1.0, Step(1), 1), 1.0);
    const ScheduleSection only_warmup{.name = name, .warmup_steps = 8, .min_lr_ratio = 0.0};
    EXPECT_DOUBLE_EQ(lr_at(only_warmup, 1.0, Step(3), 4), 0.5)
        << row.name << ": the warm-up is shortened to 4";
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
