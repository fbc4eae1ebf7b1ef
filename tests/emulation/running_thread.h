// The emulated thread that runs now, as those who check its accesses see it. Owned by the grid;
// there is one at a time, and none between launches.
#pragma once

#include <cstdint>

#include "tests/emulation/fiber.h"

namespace longshore::emulation {

// Two accesses are ordered if one thread makes both, or if their block was at a barrier between.
struct Moment {
  uint32_t launch = 0;  // from 1; 0: never
  uint32_t block = 0;
  uint32_t epoch = 0;  // barriers that its block has passed
  uint32_t thread = 0;
};

struct RunningThread {
  Moment moment;
  const Fiber* fiber = nullptr;
};

// nullptr: none runs.
const RunningThread* running_thread();

}  // namespace longshore::emulation
