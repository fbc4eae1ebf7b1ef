#include "offload/schedule/lane_ledger.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

class Accounts {
 public:
  Accounts(const StepSchedule& schedule, std::span<const OpTime> times, double begin)
      : schedule_(schedule), times_(times), begin_(begin) {}

  LaneLedger make() {
    const std::vector<size_t> tracks = tracks_of(schedule_);
    std::array<std::optional<size_t>, kTrackCount> last;
    double computed_until = begin_;
    for (size_t i = 0; i < times_.size(); ++i) {
      const Op& op = schedule_.ops[i];
      before_.push_back(std::exchange(last[tracks[i]], i));
      LaneLedger::Lane& own = lane(i);
      own.busy_seconds += times_[i].end - times_[i].begin;
      own.bytes += op.bytes;
      if (lane_of(op.kind) != Lane::kCompute) continue;
      before_.back().reset();  // the previous compute operation is no cause of a stall
      add_stall(i, computed_until);
      computed_until = times_[i].end;
    }
    return ledger_;
  }

 private:
  LaneLedger::Lane& lane(size_t op) {
    return ledger_.lanes[static_cast<size_t>(lane_of(schedule_.ops[op].kind))];
  }

  // Returns the dependency of the operation that ended last.
  std::optional<size_t> cause_of(size_t op) const {
    std::optional<size_t> cause = before_[op];
    for (int32_t before : schedule_.ops[op].after) {
      const auto index = static_cast<size_t>(before);
      if (!cause || times_[index].end > times_[*cause].end) cause = index;
    }
    return cause;
  }

  // Charges the idle time of compute from `from` until the operation to the causing lanes.
  void add_stall(size_t op, double from) {
    double until = times_[op].begin;
    for (std::optional<size_t> cause = cause_of(op); cause && until > from;
         cause = cause_of(*cause)) {
      if (times_[*cause].end <= from) return;  // no dependency ran: the thread woke late
      const double begin = std::max(from, times_[*cause].begin);
      lane(*cause).stall_seconds += until - begin;
      until = begin;
    }
  }

  const StepSchedule& schedule_;
  std::span<const OpTime> times_;
  double begin_;
  std::vector<std::optional<size_t>> before_;  // by operation: the previous one of its track
  LaneLedger ledger_;
};

}  // namespace

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
  return Accounts(schedule, times, begin).make();
}

}  // namespace longshore
