#include "trainer/loop/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"

namespace longshore {
namespace {

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

// Returns the schedule's factor from 1 to 0, without min_lr_ratio. warmup <= done <= total.
double decay(const ScheduleSection& schedule, int64_t warmup, int64_t done, int64_t total) {
  switch (schedule.name) {
    case ScheduleSection::Name::kConstant:
      return 1.0;
    case ScheduleSection::Name::kLinear:
      return ratio(total - done, total - warmup);
    case ScheduleSection::Name::kCosine: {
      const double progress = ratio(done - warmup, total - warmup);
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    }
    case ScheduleSection::Name::kWsd:
      return std::min(1.0, ratio(total - done, schedule.decay_steps));
  }
  return 1.0;
}

}  // namespace

double lr_at(const ScheduleSection& schedule, double peak_lr, Step step, int64_t total_steps) {
  LONGSHORE_CHECK(step.value >= 1 && total_steps >= 1) << step << " of " << total_steps;
  const int64_t done = std::min(step.value - 1, total_steps);
  const int64_t warmup = schedule.warmup_in(total_steps);
  if (done < warmup) return peak_lr * ratio(done, warmup);
  const double least = schedule.min_lr_ratio;
  return peak_lr * (decay(schedule, warmup, done, total_steps) * (1.0 - least) + least);
}

}  // namespace longshore
