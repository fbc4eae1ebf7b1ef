// HappensBefore: the partial order of a schedule's operations, which holds for any timing. It is
// the transitive closure of the FIFO order of each track and of every `after`. A value, made once
// per schedule; it stores operations x tracks numbers. Pure; any thread may call it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

class HappensBefore {
 public:
  // Entries of `after` that name no earlier operation are ignored.
  explicit HappensBefore(const StepSchedule& schedule);

  // Returns whether `first` ends before `second` begins in every execution.
  bool ordered(int32_t first, int32_t second) const;
  bool operator==(const HappensBefore&) const = default;

 private:
  // A vector clock: by track, the number of its operations that are done when this one is.
  using Clock = std::array<int32_t, kTrackCount>;

  std::vector<size_t> tracks_;  // by operation
  std::vector<Clock> clocks_;
};

}  // namespace longshore
