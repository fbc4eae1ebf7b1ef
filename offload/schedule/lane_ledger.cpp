#include "offload/schedule/lane_ledger.h"

#include <algorithm>
#include <optional>

#include "base/errors.h"

namespace longshore {

LaneLedger& LaneLedger::operator+=(const LaneLedger& other) {
  for (size_t i = 0; i < kLaneCount; ++i) {
    lanes[i].busy_seconds += other.lanes[i].busy_seconds;
    lanes[i].bytes += other.lanes[i].bytes;
    lanes[i].stall_seconds += other.lanes[i].stall_seconds;
  }
  return *this;
}

LaneLedger account(const StepSchedule& schedule, std::span<const OpTime> times, double begin) {
  LONGSHORE_CHECK(times.size() == schedule.ops.size()) << times.size();
  LaneLedger ledger;
  double computed_until = begin;
  for (size_t i = 0; i < times.size(); ++i) {
    const Op& op = schedule.ops[i];
    LaneLedger::Lane& own = ledger.lanes[static_cast<size_t>(lane_of(op.kind))];
    own.busy_seconds += times[i].end - times[i].begin;
    own.bytes += op.bytes;
    if (lane_of(op.kind) != Lane::kCompute) continue;
    std::optional<size_t> cause;
    for (int32_t before : op.after) {
      const auto index = static_cast<size_t>(before);
      if (!cause || times[index].end > times[*cause].end) cause = index;
    }
    const double stall = times[i].begin - computed_until;
    if (cause && times[*cause].end > computed_until) {
      ledger.lanes[static_cast<size_t>(lane_of(schedule.ops[*cause].kind))].stall_seconds += stall;
    }
    computed_until = times[i].end;
  }
  return ledger;
}

}  // namespace longshore
