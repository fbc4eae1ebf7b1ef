#include "offload/schedule/happens_before.h"

#include <algorithm>

namespace longshore {

HappensBefore::HappensBefore(const StepSchedule& schedule) {
  std::array<Clock, kLaneCount> by_lane{};  // of the lane's last operation so far
  for (const Op& op : schedule.ops) {
    const auto lane = static_cast<size_t>(lane_of(op.kind));
    Clock clock = by_lane[lane];
    for (int32_t before : op.after) {
      if (before < 0 || before >= static_cast<int32_t>(clocks_.size())) continue;
      const Clock& other = clocks_[static_cast<size_t>(before)];
      for (size_t i = 0; i < kLaneCount; ++i) clock[i] = std::max(clock[i], other[i]);
    }
    ++clock[lane];
    by_lane[lane] = clock;
    lanes_.push_back(lane);
    clocks_.push_back(clock);
  }
}

bool HappensBefore::ordered(int32_t first, int32_t second) const {
  if (first == second) return false;
  const size_t lane = lanes_.at(static_cast<size_t>(first));
  const Clock& mine = clocks_.at(static_cast<size_t>(first));
  return clocks_.at(static_cast<size_t>(second))[lane] >= mine[lane];
}

}  // namespace longshore
