// simulate_schedule: when each operation of a schedule runs if all take the times given: an event
// simulation, deterministic, without a device. Operations of one lane run one at a time, in the
// order in which they become ready; reads of parameters are served before other reads, as the
// drives do it. Lanes may share cores, and collectives share the link between ranks: where the
// running lanes want more than there is, each gets its share and takes that much longer. Cores are
// shared on the CPU device, where compute, updates, copies and sums are threads of one processor;
// the link is shared wherever units are gathered while gradients are reduced. Pure, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

// What an operation takes when it has its cores and the link to itself: first it waits, for which
// it needs neither (threads are woken), then it moves bytes over the link, then it works.
struct OpSeconds {
  double waits = 0.0;
  double moves = 0.0;
  double works = 0.0;
  double all() const { return waits + moves + works; }
};

std::vector<double> all_of(std::span<const OpSeconds> seconds);

// Threads that an operation of the lane keeps busy; 0: it waits for a device or a drive.
using LaneThreads = std::array<double, kLaneCount>;

struct SimulatedOp {
  double begin = 0.0;  // seconds from the pass's beginning
  double end = 0.0;
  // What it began right after: of those it waited for, in its lane or by `after`, the last to end.
  // -1: it began at once.
  int32_t held_by = -1;
};

struct SimulatedPass {
  std::vector<SimulatedOp> ops;              // as the schedule's
  std::array<double, kLaneCount> busy = {};  // seconds, by lane; with waits for cores and the link
  double seconds = 0.0;                      // until everything is done
};

// `seconds` are >= 0, one for each operation. Without `threads` no lane wants a core.
SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const OpSeconds> seconds,
                                const LaneThreads& threads = {}, double cores = 1.0);
// Operations of different lanes share neither cores nor the link.
SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const double> seconds);

// The chain of operations, each held by the one before, that ends last: what to shorten.
std::vector<int32_t> critical_path(const SimulatedPass& pass);

}  // namespace longshore
