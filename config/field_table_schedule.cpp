// The table's rows for the learning rate schedule.
#include "config/field_rows.h"
#include "config/schedule_table.h"

namespace longshore {
namespace {

std::vector<std::pair<std::string, ScheduleSection::Name>> schedules_by_name() {
  std::vector<std::pair<std::string, ScheduleSection::Name>> schedules;
  for (const LrSchedule& schedule : lr_schedules()) {
    schedules.emplace_back(schedule.name, schedule.kind);
  }
  return schedules;
}

}  // namespace

Section schedule_section() {
  using Schedule = ScheduleSection;
  Section section{"schedule", "learning rate schedule", {}};
  Rows rows(&section, &RunConfig::schedule);
  rows.choice<Schedule::Name>(
      "name", &Schedule::name, schedules_by_name(),
      {.description =
           "shape after the warm-up, with transformers' values: constant: the peak; linear: a line "
           "down; cosine: half a cosine wave down; cosine_with_restarts: schedule.cycles such "
           "waves; polynomial: the part of the run that is left, to the power of schedule.power; "
           "inverse_sqrt: falls with the square root of the steps, see schedule.timescale; "
           "wsd: the peak, and a decay in the last schedule.decay_steps"});
  rows.add("warmup_steps", KeyType::kInteger, &Schedule::warmup_steps,
           {.description = "number of steps of linear warm-up; the first step has a rate of 0, as "
                           "in transformers",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("warmup_ratio", KeyType::kReal, &Schedule::warmup_ratio,
           {.description = "the warm-up as a part of the run's steps, rounded up; 0: warmup_steps "
                           "counts them",
            .bounds = between(0, 1)});
  rows.add("min_lr_ratio", KeyType::kReal, &Schedule::min_lr_ratio,
           {.description =
                "final learning rate as a fraction of optimizer.lr; constant and inverse_sqrt "
                "ignore it",
            .bounds = between(0, 1)});
  rows.add("cycles", KeyType::kInteger, &Schedule::cycles,
           {.description = "cosine_with_restarts: how often the rate falls from the peak, to which "
                           "it jumps back",
            .bounds = between(1, kMaxSteps)});
  rows.add("power", KeyType::kReal, &Schedule::power,
           {.description = "polynomial: the power of the part of the run that is left; 1: linear",
            .bounds = above(0)});
  rows.add(
      "timescale", KeyType::kInteger, &Schedule::timescale,
      {.description = "inverse_sqrt: this number of steps after the warm-up the rate is 0.71 of "
                      "the peak, after three times as many half of it; 0: the steps of the "
                      "warm-up, or 10000 without one",
       .bounds = between(0, kMaxSteps),
       .unit = "steps"});
  rows.add("decay_steps", KeyType::kInteger, &Schedule::decay_steps,
           {.description = "number of decay steps at the end of wsd; required for wsd",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.choice<Schedule::Decay>(
      "decay_type", &Schedule::decay_type,
      {{"linear", Schedule::Decay::kLinear},
       {"cosine", Schedule::Decay::kCosine},
       {"1-sqrt", Schedule::Decay::kOneMinusSqrt}},
      {.description =
           "shape of the decay of wsd: linear: a line; cosine: half a cosine wave; 1-sqrt: 1 - "
           "sqrt(part of the decay that is over). transformers' decay_type is cosine by default"});
  return section;
}

}  // namespace longshore
