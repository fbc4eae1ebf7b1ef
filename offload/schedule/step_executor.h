// StepExecutor: runs a schedule: every operation on its track's stream, when its track's earlier
// operations and those it waits for are done. Owned by the engine; its thread calls run(), the work
// itself is called on the streams' threads, several operations at once.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/thread_stream.h"
#include "offload/schedule/step_schedule.h"

namespace longshore {

// One stream for each track.
using LaneStreams = std::array<std::unique_ptr<ThreadStream>, kTrackCount>;
LaneStreams make_lane_streams(
    const std::function<std::unique_ptr<ThreadStream>(Lane lane, const std::string& name)>& make);

// What operations do. Called by several tracks at once, by one in the order of the schedule.
class StepWork {
 public:
  virtual ~StepWork() = default;
  virtual void run(const Op& op) = 0;
};

// When an operation ran: seconds since the executor was made.
struct OpTime {
  double begin = 0.0;
  double end = 0.0;
};

// Where the host blocks, by reason. A few for each step, whatever the number of units.
class HostWaits {
 public:
  void count(const std::string& reason);
  const std::vector<std::pair<std::string, int64_t>>& counts() const { return counts_; }

 private:
  std::vector<std::pair<std::string, int64_t>> counts_;
};

class StepExecutor {
 public:
  // `lanes` must outlive the executor. `on_failure` gets the text of the first failure, on the
  // thread where it happened, so that it can end what other lanes wait for in other ranks.
  explicit StepExecutor(LaneStreams* lanes,
                        std::function<void(const std::string&)> on_failure = {});

  // HOST WAIT: all of the schedule is done on return. Throws what the first operation to fail
  // threw; later ones are skipped, nothing runs any more then.
  void run(const StepSchedule& schedule, StepWork& work);
  // Of the last run, by operation.
  const std::vector<OpTime>& times() const { return times_; }
  double now() const;

 private:
  void run_op(const Op& op, StepWork& work, OpTime& time);
  void note_failure(std::exception_ptr error);

  LaneStreams* lanes_;
  std::function<void(const std::string&)> on_failure_;
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  std::vector<OpTime> times_;
  int64_t origin_nanoseconds_;
};

}  // namespace longshore
