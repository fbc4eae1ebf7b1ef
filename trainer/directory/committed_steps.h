// CommittedSteps: the newest step that the run's directory records as durable on the drives of
// offload.nvme. If the drives are missing or damaged beyond their redundancy, this record reveals
// the loss and the run is refused before anything is overwritten. Sources: the commit lines of
// metrics.jsonl, "committed_step" of run.json, and the second line of state_key (without a step).
// Main thread.
#pragma once

#include <cstdint>
#include <string>

#include "comm/world/world.h"

namespace longshore {

struct CommittedSteps {
  bool any = false;
  int64_t step = -1;   // the newest; -1: unknown
  std::string source;  // the file that records it

  // Returns whether a state after `have` steps (below 1: no state) lacks a committed step.
  bool beyond(int64_t have) const { return any && (step > 0 ? step > have : have < 1); }
};

// Reads the record in this process.
CommittedSteps read_committed_steps(const std::string& run_directory);
// Returns rank 0's record on all ranks. Collective.
CommittedSteps agree_on_committed_steps(const std::string& run_directory, World& world);

// Throws CheckpointError with the possible remedies. The newest readable state has `have` steps.
[[noreturn]] void refuse_lost_steps(const CommittedSteps& acknowledged, int64_t have,
                                    const std::string& run_directory);

}  // namespace longshore
