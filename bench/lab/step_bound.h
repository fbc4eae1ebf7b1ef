// StepBound: the roofline of a step with updates deferred into forward, lane by lane. It bounds
// every scheduler. Pure functions.
//
// A step is separated from the next by its totals, and into two parts by the last unit's backward,
// before which every unit must be updated, fetched and run forward. Each part takes at least the
// time of its busiest lane:
//
//   forward    max(updates, fetches, gathers, forward)
//   backward   max(backward, fetches and gathers of units that no slot kept, reductions, drains)
//
// No real step is as short: the first unit's fetch waits for its update, its compute for its fetch,
// and the last gradient must still go to host memory. The bound "once filled" adds each lane's
// minimum wait before its first operation and after its last one. With n units, s slots, and u, h,
// g, f, b, r, d the seconds of update, fetch, gather, forward, backward, reduction and drain:
//
//   forward    max(n u + h + g,  u + n h + g,  u + h + n g,  u + h + g + (n - 1) f)
//   backward   max(n b + r + d,  b + n r + d,  b + r + n d,
//                  w + (n - s) h + g + b + r + d,  w + h + (n - s) g + b + r + d)
//
// w = min(b, h), because slots are full: the first fetch of backward waits for the last unit's
// backward, or a unit is fetched once more. The terms with w apply only if n > s.
//
// With state on drives, S state slots, and R and W the seconds of a unit's read and write: the
// first update waits for a read, so all other terms of forward start with R, and the last read
// waits for a slot. Writes may outlast forward, up to the end of the step; C is the commit.
//
//   forward    n R + u + h + g,  R + u + (n - S) W + R + u + h + g
//   the step   R + u + n W + C
//
// With parameters on drives, P parameter slots, and p the seconds of a read: backward reads the
// units that device slots did not keep, at most P of them before the last unit's backward.
//
//   backward   (n - s - P) p + h + g + b + r + d
//   the step   n R + (n - s) p + h + g + b + r + d
#pragma once

#include <string>

#include "bench/lab/timed_step.h"

namespace longshore {

struct StepBound {
  double pure = 0.0;    // seconds by busiest lanes
  double filled = 0.0;  // with the minimum costs of filling and emptying
  std::string wall;     // the busiest lanes: "update, backward"
};

StepBound bound_of(const TimedStepOptions& options);

}  // namespace longshore
