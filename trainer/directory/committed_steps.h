// CommittedSteps: what a run's directory says was made durable on the drives of offload.nvme. The
// drives may be damaged beyond their own redundancy, or be missing; then this is what says that
// something is lost, and the run is refused before anything is cut or written over.
//
// Three places say it: the commit lines of metrics.jsonl, "committed_step" of run.json, and the
// second line of state_key, which knows no step. Main thread.
#pragma once

#include <cstdint>
#include <string>

#include "comm/world/world.h"

namespace longshore {

struct CommittedSteps {
  bool any = false;
  int64_t step = -1;   // the newest; -1: not known
  std::string source;  // the file that says so

  // Whether a state after `have` steps (below 1: none at all) lacks something of it.
  bool beyond(int64_t have) const { return any && (step > 0 ? step > have : have < 1); }
};

// What this process reads there.
CommittedSteps read_committed_steps(const std::string& run_directory);
// Rank 0's, for all. Collective.
CommittedSteps agree_on_committed_steps(const std::string& run_directory, World& world);

// CheckpointError, with what can be done: the newest state that there is has `have` steps.
[[noreturn]] void refuse_lost_steps(const CommittedSteps& acknowledged, int64_t have,
                                    const std::string& run_directory);

}  // namespace longshore
