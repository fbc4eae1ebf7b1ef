// schedule_simulation: when the operations of a schedule run, and the schedule as a table and as a
// timeline of lanes.
//
// simulate_schedule is a deterministic event simulation that computes when each operation of a
// schedule runs, from given durations and without a device. Operations of one lane run one at a
// time in the order in which they become ready; reads of parameters overtake other reads, as on the
// drives. Lanes may share cores, and collectives share the link between ranks: where the running
// lanes want more than exists, each gets its share and takes longer in proportion. Cores are shared
// on the CPU device, where compute, updates, copies and sums are threads of one processor; the link
// is shared wherever gathers overlap with reductions. Pure; any thread may call it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

// The duration of an operation that has its cores and the link to itself. It first waits (threads
// are woken; this uses neither), then moves bytes over the link, then works.
struct OpSeconds {
  double waits = 0.0;
  double moves = 0.0;
  double works = 0.0;
  double all() const { return waits + moves + works; }
};

std::vector<double> all_of(std::span<const OpSeconds> seconds);

// Threads that an operation of each lane keeps busy; 0: it waits for a device or a drive.
using LaneThreads = std::array<double, kLaneCount>;

struct SimulatedOp {
  double begin = 0.0;  // seconds from the pass's beginning
  double end = 0.0;
  // The dependency (by lane or by `after`) that ended last before this one began; of several the
  // last in the schedule. -1: none.
  int32_t held_by = -1;
};

struct SimulatedPass {
  std::vector<SimulatedOp> ops;              // in the order of the schedule
  std::array<double, kLaneCount> busy = {};  // seconds, by lane, including waits for cores and link
  double seconds = 0.0;                      // until all operations are done
};

// Simulates the pass. `seconds` >= 0, one per operation. Without `threads` no lane needs a core.
SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const OpSeconds> seconds,
                                const LaneThreads& threads = {}, double cores = 1.0);
// Simulates lanes that share neither cores nor the link.
SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const double> seconds);

// Returns the chain of operations, each held by the one before, that ends last.
std::vector<int32_t> critical_path(const SimulatedPass& pass);

// Prints a line for each operation: number, lane, unit, slots, dependencies, bytes.
std::string print_schedule(const StepSchedule& schedule, const ModelSpec& model);

// Draws an SVG picture with one row for each lane that has operations and one bar for each
// operation. `pass` is the simulation of `schedule` and gives the bars' lengths; tooltips show
// names and waits.
std::string draw_schedule(const StepSchedule& schedule, const ModelSpec& model,
                          const SimulatedPass& pass);

}  // namespace longshore
