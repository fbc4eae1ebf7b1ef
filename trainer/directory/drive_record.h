// The record in run.dir of the run's state on the drives of offload.nvme: the key
// that identifies it there, and the newest step that is durable there. Plain functions of the main
// thread; the key is read and written by rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/world/world.h"
#include "nvme/commit/manifest.h"

namespace longshore {

// <run.dir>/state_key identifies the run on its drives: 128 random bits as 32 hexadecimal digits,
// written before the first state file. A second line, "committed", is added after the first commit.

std::string state_key_path(const std::string& run_directory);
// Returns the key as 32 hexadecimal digits.
std::string text_of(const RunKey& key);
std::optional<RunKey> parse_key(std::string_view text);

struct StateKeyFile {
  bool exists = false;
  std::optional<RunKey> key;  // empty if the file is missing or damaged
  bool committed = false;
};

StateKeyFile read_state_key(const std::string& run_directory);
void write_state_key(const std::string& run_directory, const RunKey& key, bool committed);
RunKey new_key();

// CommittedSteps: the newest step that the run's directory records as durable on the drives of
// offload.nvme. If the drives are missing or damaged beyond their redundancy, this record reveals
// the loss and the run is refused before anything is overwritten. Sources: the commit lines of
// metrics.jsonl, "committed_step" of run.json, and the second line of state_key (without a step).
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
