// simulate_schedule: when each operation of a schedule runs if all take the times given: an event
// simulation, deterministic, without a device. Operations of one lane share its rate, so each has
// it for itself: in the order in which they are ready, reads of parameters before others that are
// (as the drives do it). Pure, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

struct SimulatedOp {
  double begin = 0.0;  // seconds from the pass's beginning
  double end = 0.0;
  // What it began right after: of those it waited for, in its lane or by `after`, the last to end.
  // -1: it began at once.
  int32_t held_by = -1;
};

struct SimulatedPass {
  std::vector<SimulatedOp> ops;              // as the schedule's
  std::array<double, kLaneCount> busy = {};  // seconds, by lane
  double seconds = 0.0;                      // until everything is done
};

// `seconds`: how long each operation takes, >= 0.
SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const double> seconds);

// The chain of operations, each held by the one before, that ends last: what to shorten.
std::vector<int32_t> critical_path(const SimulatedPass& pass);

}  // namespace longshore
