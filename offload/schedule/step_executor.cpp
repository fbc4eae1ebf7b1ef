#include "offload/schedule/step_executor.h"

#include <algorithm>
#include <chrono>
#include <exception>

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

}  // namespace longshore
