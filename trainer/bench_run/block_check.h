// BlockCheck: whether offloading changes a bit of what a run computes. One block of the run's
// shapes, with random weights, takes a few steps twice: through the device slots and tiers of the
// run, and with all of its parameters resident on the device, each unit in a slot of its own.
// Losses, gradient norms and the whole state must have equal bits. Main thread; the engine of the
// run must be gone, because the block takes memory of its own.
#pragma once

#include <string>

#include "base/json.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

struct BlockCheck {
  bool equal = false;
  std::string not_run = {};  // the reason; empty: it ran
  int steps = 0;
  int32_t slots = 0;     // device slots of the run's way
  int32_t resident = 0;  // device slots with all units resident

  // "equal", "different" or "not run"
  std::string result() const;
  Json to_json() const;
};

// `arguments` are those of the run, `run` is what became of them; `directory` is for files of the
// check. A block that does not fit while it is resident is not run.
BlockCheck check_block(const RunArguments& arguments, const MeasuredRun& run,
                       const std::string& directory);

}  // namespace longshore
