#include "offload/forecast/plan_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/median.h"
#include "base/texts.h"
#include "offload/forecast/forecast_text.h"

namespace longshore {
namespace {

constexpr size_t kSteps = 4;
// Lanes with a smaller share of a step are noise.
constexpr double kLeastShare = 0.01;
// Rates measured beside other programs are off by factors of ten; factors are clamped to this.
constexpr double kMostFactor = 1000.0;

}  // namespace

PlanCheck::PlanCheck(StepForecast planned, LaneFactors used)
    : planned_(std::move(planned)), used_(used) {
  LONGSHORE_CHECK(planned_.known() && planned_.seconds > 0.0) << "nothing was planned";
}

void PlanCheck::add(double seconds, const std::array<double, kLaneCount>& busy) {
  if (steps_++ == 0 || complete()) return;
  seconds_.push_back(seconds);
  for (size_t lane = 0; lane < kLaneCount; ++lane) busy_[lane].push_back(busy[lane]);
}

bool PlanCheck::complete() const {
  return seconds_.size() == kSteps;
}

double PlanCheck::measured_seconds() const {
  return median_of(seconds_);
}

double PlanCheck::measured(size_t lane) const {
  return median_of(busy_[lane]);
}

Lane PlanCheck::blamed() const {
  size_t most = 0;
  const auto off = [this](size_t lane) { return std::abs(measured(lane) - planned_.busy[lane]); };
  for (size_t lane = 1; lane < kLaneCount; ++lane) {
    if (off(lane) > off(most)) most = lane;
  }
  return static_cast<Lane>(most);
}

LaneFactors PlanCheck::factors() const {
  LaneFactors factors = used_;
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    const double planned = planned_.busy[lane];
    if (planned < kLeastShare * planned_.seconds || measured(lane) <= 0.0) continue;
    factors[lane] =
        std::clamp(used_[lane] * measured(lane) / planned, 1.0 / kMostFactor, kMostFactor);
  }
  return factors;
}

std::string PlanCheck::text() const {
  const double share = measured_seconds() / planned_.seconds - 1.0;
  const std::string percent =
      formatted("%.0f %% %s", 100.0 * std::abs(share), share < 0.0 ? "less" : "more");
  const auto lane = static_cast<size_t>(blamed());
  return "planned " + rounded_seconds(planned_.seconds) + " a step, measured " +
         rounded_seconds(measured_seconds()) + " (" + percent + "); largest error: the " +
         std::string(name_of(blamed())) + " lane, busy " + rounded_seconds(measured(lane)) +
         " where " + rounded_seconds(planned_.busy[lane]) + " were planned";
}

}  // namespace longshore
