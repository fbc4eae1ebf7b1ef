// LaneLedger: busy time and bytes of each lane in a pass, and the stalls of compute. A value;
// `account` makes it from the schedule and the times of its operations. Pure function.
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
    // Seconds in which compute was idle and this lane ran the operation on the chain of causes: the
    // dependency that ended last, before it the one that this dependency waited for, and so on.
    double stall_seconds = 0.0;
  };
  std::array<Lane, kLaneCount> lanes = {};

  const Lane& of(longshore::Lane lane) const { return lanes.at(static_cast<size_t>(lane)); }
  LaneLedger& operator+=(const LaneLedger& other);
};

// Makes the ledger; `begin` is the time at which the schedule was issued.
LaneLedger account(const StepSchedule& schedule, std::span<const OpTime> times, double begin);

}  // namespace longshore
