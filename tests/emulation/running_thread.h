// RunningThread: the emulated thread that runs now, for the checks of its accesses. The grid owns
// it; there is at most one, and none between launches.
#pragma once

#include <cstdint>

#include "tests/emulation/fiber.h"

namespace longshore::emulation {

// Moment: when a thread accessed a byte. Two accesses are ordered if one thread makes both, or if
// their block was at a barrier between.
struct Moment {
  uint32_t launch = 0;  // from 1; 0 is never
  uint32_t block = 0;
  uint32_t epoch = 0;  // barriers that its block has passed
  uint32_t thread = 0;
};

struct RunningThread {
  Moment moment;
  const Fiber* fiber = nullptr;
};

// Returns the running thread, or nullptr if none runs.
const RunningThread* running_thread();

}  // namespace longshore::emulation
