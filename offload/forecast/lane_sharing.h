// simulate_sharing: simulate_schedule for a machine on which lanes share cores: where the lanes
// that run want more of them than there are, each gets its share and takes that much longer. So it
// is on the CPU device, where compute, updates, copies and sums are threads of one processor.
// Deterministic, without a device. Pure, any thread.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "offload/schedule/schedule_simulation.h"

namespace longshore {

// Threads that an operation of the lane keeps busy; 0: it waits for a device or a drive.
using LaneThreads = std::array<double, kLaneCount>;

// What an operation takes with its threads' cores for itself: first it waits, for which it wants no
// core (threads are woken, messages are on their way), then it works.
struct OpSeconds {
  double waits = 0.0;
  double works = 0.0;
  double all() const { return waits + works; }
};

std::vector<double> all_of(std::span<const OpSeconds> seconds);

// With cores for all it is simulate_schedule. `busy` counts what operations take, their waits for
// cores included.
SimulatedPass simulate_sharing(const StepSchedule& schedule, std::span<const OpSeconds> seconds,
                               const LaneThreads& threads, double cores);

}  // namespace longshore
