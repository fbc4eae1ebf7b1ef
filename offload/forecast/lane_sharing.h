// simulate_sharing: simulate_schedule for a machine on which lanes share cores, and collectives the
// link between ranks: where the lanes that run want more than there is, each gets its share and
// takes that much longer. Cores are shared on the CPU device, where compute, updates, copies and
// sums are threads of one processor; the link wherever units are gathered while gradients are
// summed. Deterministic, without a device. Pure, any thread.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "offload/schedule/schedule_simulation.h"

namespace longshore {

// Threads that an operation of the lane keeps busy; 0: it waits for a device or a drive.
using LaneThreads = std::array<double, kLaneCount>;

// What an operation takes with its threads' cores and the link for itself: first it waits, for
// which it wants neither (threads are woken), then it moves bytes over the link, then it works.
struct OpSeconds {
  double waits = 0.0;
  double moves = 0.0;
  double works = 0.0;
  double all() const { return waits + moves + works; }
};

std::vector<double> all_of(std::span<const OpSeconds> seconds);

// With cores for all it is simulate_schedule. `busy` counts what operations take, their waits for
// cores included.
SimulatedPass simulate_sharing(const StepSchedule& schedule, std::span<const OpSeconds> seconds,
                               const LaneThreads& threads, double cores);

}  // namespace longshore
