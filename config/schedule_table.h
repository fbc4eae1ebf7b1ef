// The table of learning rate schedules: for each the value of schedule.name and its formula, and
// the schedules of transformers' lr_scheduler_type that are one of them. Constants and pure
// functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "config/run_config.h"

namespace longshore {

// A place in a run, after its warm-up: warmup <= done <= total.
struct SchedulePlace {
  int64_t warmup = 0, done = 0, total = 1;  // steps
};

struct LrSchedule {
  ScheduleSection::Name kind;
  const char* name;  // the value of schedule.name
  // Returns the rate as a part of the peak, from 1 on, without schedule.min_lr_ratio.
  double (*factor)(const ScheduleSection& schedule, const SchedulePlace& place);
  bool has_least = true;  // schedule.min_lr_ratio is mixed in
};

std::span<const LrSchedule> lr_schedules();
const LrSchedule& lr_schedule_of(ScheduleSection::Name kind);

// A member of transformers' lr_scheduler_kwargs.
struct OtherScheduleOption {
  const char* name = nullptr;
  const char* key = nullptr;  // of the run file
  bool whole = false;         // an integer
  bool is_rate = false;       // a learning rate; the key has its ratio to the peak
  double usual = 0.0;         // its value where it is left out; 0: that of the key
  // Set: the value is a text, one of the key's. This is its value where it is left out.
  const char* usual_text = nullptr;
};

struct OtherSchedule {
  std::string_view name;  // lr_scheduler_type
  ScheduleSection::Name kind;
  std::array<OtherScheduleOption, 3> options = {};  // a later one replaces an earlier one
};

std::span<const OtherSchedule> other_schedules();

}  // namespace longshore
