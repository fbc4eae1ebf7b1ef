// UnitSeconds: how long a unit computes, from what was measured of it at one or two sizes of
// micro-batches. Larger ones take less a position, which one measurement cannot tell. Pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

namespace longshore {

// Of a position; backward with the forward that it repeats.
struct UnitSeconds {
  double forward = 0.0, backward = 0.0;
  bool operator==(const UnitSeconds&) const = default;
};

struct UnitPoint {
  int64_t positions = 0;  // of the micro-batch that was run; 0 where it was not noted
  UnitSeconds seconds;
  bool operator==(const UnitPoint&) const = default;
};

// `points`: one, which then holds for all micro-batches, or two by positions, the least first. A
// micro-batch takes the time of the line through both. Where that line starts below 0, as noise
// can make it, it holds between the points alone, and a position beyond takes what it takes at the
// nearest.
UnitSeconds unit_seconds(const std::vector<UnitPoint>& points, int64_t positions);

}  // namespace longshore
