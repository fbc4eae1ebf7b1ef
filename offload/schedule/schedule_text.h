// print_schedule, draw_schedule: a schedule as a table and as a timeline of lanes. Pure functions.
#pragma once

#include <string>

#include "offload/schedule/schedule_simulation.h"
#include "offload/schedule/step_schedule.h"

namespace longshore {

// Prints a line for each operation: number, lane, unit, slots, dependencies, bytes.
std::string print_schedule(const StepSchedule& schedule, const ModelSpec& model);

// Draws an SVG picture with one row for each lane that has operations and one bar for each
// operation. `pass` is the simulation of `schedule` and gives the bars' lengths; tooltips show
// names and waits.
std::string draw_schedule(const StepSchedule& schedule, const ModelSpec& model,
                          const SimulatedPass& pass);

}  // namespace longshore
