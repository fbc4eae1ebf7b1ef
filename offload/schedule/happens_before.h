// HappensBefore: which operations of a schedule are done before which begin, whatever the timing:
// the transitive closure of the order inside each track and of every `after`. A value, made once
// for a schedule; ops x tracks numbers. Pure, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

class HappensBefore {
 public:
  // Entries of `after` that name no earlier operation count for nothing.
  explicit HappensBefore(const StepSchedule& schedule);

  // Whether `first` is done before `second` begins, in every execution.
  bool ordered(int32_t first, int32_t second) const;
  bool operator==(const HappensBefore&) const = default;

 private:
  // By track: how many of its operations are done when this one is (a vector clock).
  using Clock = std::array<int32_t, kTrackCount>;

  std::vector<size_t> tracks_;  // by operation
  std::vector<Clock> clocks_;
};

}  // namespace longshore
