// StepBound: how short a step can be, whoever schedules it, when updates are deferred into forward:
// the roofline, lane by lane. Pure functions.
//
// The totals of a step part it from the next, and the last unit's backward, before which every unit
// must be updated, fetched and have run forward, parts it in two. Each part takes at least what its
// busiest lane takes:
//
//   forward    max(updates, fetches, gathers, forward)
//   backward   max(backward, fetches and gathers of units that no slot kept, reductions, drains)
//
// No step is as short: the first unit's fetch waits for its update, its compute for its fetch, and
// the last gradient must still go to host memory. With the least that a lane must wait before its
// first operation and after its last one, the same maxima give the bound once filled. n units, s
// slots; u, h, g, f, b, r, d: seconds of update, fetch, gather, forward, backward, reduction,
// drain.
//
//   forward    max(n u + h + g,  u + n h + g,  u + h + n g,  u + h + g + (n - 1) f)
//   backward   max(n b + r + d,  b + n r + d,  b + r + n d,
//                  w + (n - s) h + g + b + r + d,  w + h + (n - s) g + b + r + d)
//
// w = min(b, h): slots are full of what comes next, so the first fetch of backward waits for the
// last unit's backward, or a unit is fetched once more. Its lines only where n > s.
//
// With state on drives, S slots of it, R and W: seconds of a unit's read and write: the first
// update waits for a read, so R comes before every line of forward but its own, and the last read
// for a slot. Writes may last longer than forward, and as long as the step.
//
//   forward    n R + u + h + g,  R + u + (n - S) W + R + u + h + g
//   the step   R + u + n W
//
// With parameters on drives, P slots, p: seconds of a read: backward reads what slots on the device
// did not keep, P of them before the last unit's backward at most.
//
//   backward   (n - s - P) p + h + g + b + r + d
//   the step   n R + (n - s) p + h + g + b + r + d
#pragma once

#include <string>

#include "bench/lab/timed_step.h"

namespace longshore {

struct StepBound {
  double pure = 0.0;    // seconds: busiest lanes
  double filled = 0.0;  // with what filling and emptying cost anybody
  std::string wall;     // the busiest lanes: "update, backward"
};

StepBound bound_of(const TimedStepOptions& options);

}  // namespace longshore
