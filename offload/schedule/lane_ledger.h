// LaneLedger: what the lanes did in a pass, and what compute waited for. A value; `account` makes
// it from the schedule and the times of its operations. Pure function.
#pragma once

#include <array>
#include <span>

#include "offload/schedule/step_executor.h"
#include "offload/schedule/step_schedule.h"

namespace longshore {

struct LaneLedger {
  struct Lane {
    double busy_seconds = 0.0;
    Bytes bytes = 0;
    // Compute stood still, and of what it waited for this lane's operation ran then: the last to
    // end, before that the one which that one waited for, and so on.
    double stall_seconds = 0.0;
  };
  std::array<Lane, kLaneCount> lanes = {};

  const Lane& of(longshore::Lane lane) const { return lanes.at(static_cast<size_t>(lane)); }
  LaneLedger& operator+=(const LaneLedger& other);
};

// `begin`: when the schedule was issued.
LaneLedger account(const StepSchedule& schedule, std::span<const OpTime> times, double begin);

}  // namespace longshore
