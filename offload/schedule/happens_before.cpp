#include "offload/schedule/happens_before.h"

#include <algorithm>

namespace longshore {

HappensBefore::HappensBefore(const StepSchedule& schedule) : tracks_(tracks_of(schedule)) {
  std::array<Clock, kTrackCount> by_track{};  // by track: clock of its last operation so far
  for (const Op& op : schedule.ops) {
    const size_t track = tracks_[clocks_.size()];
    Clock clock = by_track[track];
    for (int32_t before : op.after) {
      if (before < 0 || before >= static_cast<int32_t>(clocks_.size())) continue;
      const Clock& other = clocks_[static_cast<size_t>(before)];
      for (size_t i = 0; i < kTrackCount; ++i) clock[i] = std::max(clock[i], other[i]);
    }
    ++clock[track];
    by_track[track] = clock;
    clocks_.push_back(clock);
  }
}

bool HappensBefore::ordered(int32_t first, int32_t second) const {
  if (first == second) return false;
  const size_t track = tracks_.at(static_cast<size_t>(first));
  const Clock& mine = clocks_.at(static_cast<size_t>(first));
  return clocks_.at(static_cast<size_t>(second))[track] >= mine[track];
}

}  // namespace longshore
