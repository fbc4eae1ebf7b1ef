// Random plans beside steps of timers. Goal: the cover has every valid pair of values, every plan
// has the requested forecast, and the timers run all of them.
#include "bench/lab/drawn_plans.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/json.h"

namespace longshore {
namespace {

constexpr uint32_t kSeed = 1;

// 250 random choices cover every valid pair of values.
TEST(DrawnPlans, TheCoverHasEveryPairOfValues) {
  const CaseCover cover = draw_choices(250, kSeed);
  EXPECT_EQ(cover.choices.size(), 250u);
  EXPECT_EQ(cover.pairs, cover.pairs_all);
  EXPECT_GT(cover.pairs, 500u);
}

// Every plan's forecast is the requested time.
TEST(DrawnPlans, EveryPlanIsForecastToTakeWhatWasAsked) {
  const CaseCover cover = draw_choices(60, kSeed);
  for (size_t i = 0; i < cover.choices.size(); ++i) {
    const PlanCase made = make_plan_case(cover.choices[i], static_cast<uint32_t>(i), 0.25);
    EXPECT_NEAR(made.forecast.seconds, 0.25, 1e-9) << i;
    // No lane works longer than a step, and together they work at least as long.
    const double all = std::accumulate(made.forecast.alone.begin(), made.forecast.alone.end(), 0.0);
    EXPECT_GE(all, 0.25 * (1 - 1e-9)) << i;
    EXPECT_LE(*std::ranges::max_element(made.forecast.alone), 0.25 * (1 + 1e-9)) << i;
    EXPECT_EQ(made.ranks.compute.front(), 1.0) << "the first rank has most";
  }
}

// Goal: timers run the schedules of every kind of plan, with waits for ranks, drives and passes.
TEST(DrawnPlans, TimersRunEveryKindOfPlan) {
  const LabPlanOptions options{
      .plans = 24, .step_milliseconds = 20.0, .steps = 1, .in_turn = 6, .seed = kSeed};
  const CaseCover cover = draw_choices(options.plans, options.seed);
  const std::vector<PlanFigures> all = measure_plans(options, cover);
  ASSERT_EQ(all.size(), 24u);
  for (const PlanFigures& one : all) {
    // Ranks with less to compute, and drives with one rank, make a step slightly shorter.
    EXPECT_GT(one.measured, 0.8 * one.planned);
    EXPECT_GT(one.operations, 20u);
  }
}

// The command prints its plans as JSON rows, and a summary.
TEST(DrawnPlans, PrintsRowsAsJsonAndASummary) {
  LabPlanOptions options{.plans = 2, .step_milliseconds = 5.0, .steps = 1};
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_lab_plans(options), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("measured of planned: half within"), std::string::npos) << text;
  options.json = true;
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_lab_plans(options), 0);
  const Json rows = Json::parse(testing::internal::GetCapturedStdout());
  ASSERT_EQ(rows.at("plans").size(), 2u);
  EXPECT_NEAR(rows.at("plans")[0].at("planned_seconds").get<double>(), 5e-3, 1e-9);
}

}  // namespace
}  // namespace longshore
