#include "offload/schedule/step_executor.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/mutex.h"

namespace longshore {
namespace {

int64_t clock_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace

LaneStreams make_lane_streams(
    const std::function<std::unique_ptr<ThreadStream>(Lane lane, const std::string& name)>& make) {
  LaneStreams streams;
  for (size_t track = 0; track < kTrackCount; ++track) {
    streams[track] = make(lane_of_track(track), name_of_track(track));
  }
  return streams;
}

void HostWaits::count(const std::string& reason) {
  const auto found = std::ranges::find(counts_, reason, &std::pair<std::string, int64_t>::first);
  if (found == counts_.end()) {
    counts_.emplace_back(reason, 1);
  } else {
    ++found->second;
  }
}

StepExecutor::StepExecutor(LaneStreams* lanes, std::function<void(const std::string&)> on_failure)
    : lanes_(lanes), on_failure_(std::move(on_failure)), origin_nanoseconds_(clock_nanoseconds()) {}

double StepExecutor::now() const {
  return static_cast<double>(clock_nanoseconds() - origin_nanoseconds_) * 1e-9;
}

void StepExecutor::run(const StepSchedule& schedule, StepWork& work) {
  times_.assign(schedule.ops.size(), {});
  const std::vector<size_t> tracks = tracks_of(schedule);
  std::vector<Event> events;
  events.reserve(schedule.ops.size());
  std::vector<Event> after;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    after.clear();
    for (int32_t before : op.after) after.push_back(events.at(static_cast<size_t>(before)));
    ThreadStream& stream = *lanes_->at(tracks[i]);
    events.push_back(
        stream.enqueue(after, [this, &op, &work, time = &times_[i]] { run_op(op, work, *time); }));
  }
  for (const Event& event : events) {
    try {
      event.wait();
    } catch (...) {
      note_failure(std::current_exception());
    }
  }
  const MutexLock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void StepExecutor::run_op(const Op& op, StepWork& work, OpTime& time) {
  // After a failure in another lane the operands may be invalid, so the operation is skipped.
  if (failed_.load(std::memory_order_acquire)) return;
  try {
    time.begin = now();
    work.run(op);
    time.end = now();
  } catch (...) {
    note_failure(std::current_exception());
    throw;
  }
}

void StepExecutor::note_failure(std::exception_ptr error) {
  {
    const MutexLock lock(mutex_);
    if (failure_) return;
    failure_ = error;
    failed_.store(true, std::memory_order_release);
  }
  if (on_failure_) on_failure_(text_of(error));
}

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

  // Returns the dependency of the operation that ended last; of several the last in the schedule.
  std::optional<size_t> cause_of(size_t op) const {
    std::optional<size_t> cause = before_[op];
    for (int32_t before : schedule_.ops[op].after) {
      const auto index = static_cast<size_t>(before);
      const auto key = [this](size_t other) { return std::pair(times_[other].end, other); };
      if (!cause || key(index) > key(*cause)) cause = index;
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
