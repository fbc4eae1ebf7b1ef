// A schedule for people: as a table, and drawn as lanes over time. Pure functions.
#pragma once

#include <string>

#include "offload/schedule/schedule_simulation.h"
#include "offload/schedule/step_schedule.h"

namespace longshore {

// One operation per line: its number, lane, unit, what it uses, what it waits for, its bytes. Ends
// with a newline.
std::string print_schedule(const StepSchedule& schedule, const ModelSpec& model);

// An SVG picture: a row for each lane that has operations, a bar for each operation as long as it
// takes in `pass`, which is the schedule's; names and waits show under the pointer.
std::string draw_schedule(const StepSchedule& schedule, const ModelSpec& model,
                          const SimulatedPass& pass);

}  // namespace longshore
