// Plans that cover all keys which change a step's schedule, each with its own rates and
// with timers for its operations. For `longshore_lab plans`. Values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/lab/timer_run.h"
#include "offload/forecast/step_forecast.h"

namespace longshore {

struct CaseKey {
  std::string_view name;
  std::vector<std::string_view> values;
};
inline constexpr size_t kCaseKeyCount = 13;
const std::array<CaseKey, kCaseKeyCount>& case_keys();

// The index of a value, by key.
using CaseChoice = std::array<uint8_t, kCaseKeyCount>;

// Choices that can run, drawn to cover all compatible pairs of values of two keys quickly.
struct CaseCover {
  std::vector<CaseChoice> choices;
  size_t pairs = 0;      // pairs of values that a choice covers
  size_t pairs_all = 0;  // compatible pairs in all
};
CaseCover draw_choices(int32_t count, uint32_t seed);

struct PlanCase {
  CaseChoice choice = {};
  StepForecast forecast;
  TimedStep step;
  TimerRanks ranks;
};
// Draws each lane's rate, so that the lane takes from 1/4 to 2 times the time of compute, and
// scales all rates so that a step is forecast to take `step_seconds`.
PlanCase make_plan_case(const CaseChoice& choice, uint32_t seed, double step_seconds);

}  // namespace longshore
