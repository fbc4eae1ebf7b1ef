// PlanCases: plans that differ in every key that changes the schedule of a step, each with rates of
// its own and with the timers that stand for what they are of. For `longshore_lab plans`. Values,
// pure functions.
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

// One value of each key, by its number.
using CaseChoice = std::array<uint8_t, kCaseKeyCount>;

// Choices that can be run, drawn so that every two values of two keys that go together soon do.
struct CaseCover {
  std::vector<CaseChoice> choices;
  size_t pairs = 0;      // of values that are together in one of them
  size_t pairs_all = 0;  // that go together at all
};
CaseCover draw_choices(int32_t count, uint32_t seed);

struct PlanCase {
  CaseChoice choice = {};
  StepForecast forecast;
  TimedStep step;
  TimerRanks ranks;
};
// Each lane's rate is drawn, so that it takes from a quarter of what computation does to twice as
// much; all rates together are such that a step is forecast to take `step_seconds`.
PlanCase make_plan_case(const CaseChoice& choice, uint32_t seed, double step_seconds);

}  // namespace longshore
