// unit_seconds: a unit's compute time, from measurements at one or two micro-batch sizes. Two show
// how much less larger ones take per position. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace longshore {

// Seconds per position; backward includes the recomputed forward.
struct UnitSeconds {
  double forward = 0.0, backward = 0.0;
  bool operator==(const UnitSeconds&) const = default;
};

struct UnitPoint {
  int64_t positions = 0;  // of the measured micro-batch; 0: not recorded
  UnitSeconds seconds;
  bool operator==(const UnitPoint&) const = default;
};

// `points` are one, used for all micro-batches, or two in ascending order of positions. A
// micro-batch takes the time on the line through both. If noise makes the line start below 0 or
// fall, it applies only between the points; beyond, the time per position is that of the nearest
// point.
UnitSeconds unit_seconds(const std::vector<UnitPoint>& points, int64_t positions);

}  // namespace longshore
