#include "trainer/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"constant", "linear", "cosine", "wsd"};

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

// From 1 down to 0, before the least rate is mixed in. done <= total.
double decay(const LrSchedule& schedule, int64_t done, int64_t total) {
  switch (schedule.shape) {
    case LrShape::kConstant:
      return 1.0;
    case LrShape::kLinear:
      return ratio(total - done, total - schedule.warmup_steps);
    case LrShape::kCosine: {
      const double progress = ratio(done - schedule.warmup_steps, total - schedule.warmup_steps);
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    }
    case LrShape::kWsd:
      return std::min(1.0, ratio(total - done, schedule.decay_steps));
  }
  return 1.0;
}

}  // namespace

std::string_view name_of(LrShape shape) {
  return kNames[static_cast<size_t>(shape)];
}

std::optional<LrShape> parse_lr_shape(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LrShape>(i);
  }
  return std::nullopt;
}

double lr_at(const LrSchedule& schedule, Step step, int64_t total_steps) {
  LONGSHORE_CHECK(step.value >= 1 && total_steps >= 1) << step << " of " << total_steps;
  const int64_t done = std::min(step.value - 1, total_steps);
  if (done < schedule.warmup_steps) {
    return schedule.peak_lr * ratio(done, schedule.warmup_steps);
  }
  const double least = schedule.min_lr_ratio;
  return schedule.peak_lr * (decay(schedule, done, total_steps) * (1.0 - least) + least);
}

}  // namespace longshore
