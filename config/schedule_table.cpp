#include "config/schedule_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "base/errors.h"

namespace longshore {
namespace {

using Name = ScheduleSection::Name;

// The timescale of inverse_sqrt in a run without a warm-up, as in transformers.
constexpr int64_t kUsualTimescale = 10'000;

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

// Returns the part of the time after the warm-up that is over.
double progress_at(const SchedulePlace& place) {
  return ratio(place.done - place.warmup, place.total - place.warmup);
}

double constant(const ScheduleSection&, const SchedulePlace&) {
  return 1.0;
}

double linear(const ScheduleSection&, const SchedulePlace& place) {
  return ratio(place.total - place.done, place.total - place.warmup);
}

// Returns half a cosine wave, from 1 at the part 0 to 0 at the part 1.
double half_wave(double part) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * part));
}

double cosine(const ScheduleSection&, const SchedulePlace& place) {
  return half_wave(progress_at(place));
}

double cosine_with_restarts(const ScheduleSection& schedule, const SchedulePlace& place) {
  const double progress = progress_at(place);
  if (progress >= 1.0) return 0.0;
  return half_wave(std::fmod(static_cast<double>(schedule.cycles) * progress, 1.0));
}

double polynomial(const ScheduleSection& schedule, const SchedulePlace& place) {
  return std::pow(1.0 - progress_at(place), schedule.power);
}

double inverse_sqrt(const ScheduleSection& schedule, const SchedulePlace& place) {
  int64_t timescale = schedule.timescale;
  if (timescale == 0) timescale = place.warmup > 0 ? place.warmup : kUsualTimescale;
  return 1.0 / std::sqrt(ratio(place.done - place.warmup + timescale, timescale));
}

double wsd(const ScheduleSection& schedule, const SchedulePlace& place) {
  const double left = std::min(1.0, ratio(place.total - place.done, schedule.decay_steps));
  switch (schedule.decay_type) {
    case ScheduleSection::Decay::kLinear:
      break;
    case ScheduleSection::Decay::kCosine:
      return half_wave(1.0 - left);
    case ScheduleSection::Decay::kOneMinusSqrt:
      return 1.0 - std::sqrt(1.0 - left);
  }
  return left;
}

constexpr LrSchedule kSchedules[] = {
    {Name::kConstant, "constant", constant},
    {Name::kLinear, "linear", linear},
    {Name::kCosine, "cosine", cosine},
    {Name::kCosineWithRestarts, "cosine_with_restarts", cosine_with_restarts},
    {Name::kPolynomial, "polynomial", polynomial},
    {Name::kInverseSqrt, "inverse_sqrt", inverse_sqrt, /*has_least=*/false},
    {Name::kWsd, "wsd", wsd},
};

constexpr const char* kLeast = "schedule.min_lr_ratio";

constexpr OtherSchedule kOthers[] = {
    {"constant", Name::kConstant},
    {"constant_with_warmup", Name::kConstant},
    {"linear", Name::kLinear},
    {"cosine", Name::kCosine},
    {"cosine_with_min_lr",
     Name::kCosine,
     {{{.name = "min_lr", .key = kLeast, .is_rate = true},
       {.name = "min_lr_rate", .key = kLeast}}}},
    {"cosine_with_restarts",
     Name::kCosineWithRestarts,
     {{{.name = "num_cycles", .key = "schedule.cycles", .whole = true}}}},
    {"polynomial",
     Name::kPolynomial,
     {{{.name = "power", .key = "schedule.power"},
       {.name = "lr_end", .key = kLeast, .is_rate = true, .usual = 1e-7}}}},
    {"inverse_sqrt",
     Name::kInverseSqrt,
     {{{.name = "timescale", .key = "schedule.timescale", .whole = true}}}},
    {"warmup_stable_decay",
     Name::kWsd,
     {{{.name = "num_decay_steps", .key = "schedule.decay_steps", .whole = true},
       {.name = "min_lr_ratio", .key = kLeast},
       {.name = "decay_type", .key = "schedule.decay_type", .usual_text = "cosine"}}}},
};

}  // namespace

std::span<const LrSchedule> lr_schedules() {
  return kSchedules;
}

const LrSchedule& lr_schedule_of(ScheduleSection::Name kind) {
  const auto* const found = std::ranges::find(kSchedules, kind, &LrSchedule::kind);
  LONGSHORE_CHECK(found != std::end(kSchedules)) << static_cast<int>(kind);
  return *found;
}

std::span<const OtherSchedule> other_schedules() {
  return kOthers;
}

}  // namespace longshore
