// StepExecutor: runs a schedule. Each operation runs on its track's stream once the track's earlier
// operations and its `after` are done. Owned by the engine, whose thread calls run(); the streams'
// threads do the work, several operations at once.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "device/thread_stream.h"
#include "offload/schedule/step_schedule.h"

namespace longshore {

// Holds one stream for each track.
using LaneStreams = std::array<std::unique_ptr<ThreadStream>, kTrackCount>;
LaneStreams make_lane_streams(
    const std::function<std::unique_ptr<ThreadStream>(Lane lane, const std::string& name)>& make);

// The work of the operations. Tracks call run() concurrently; each calls it in schedule order.
class StepWork {
 public:
  virtual ~StepWork() = default;
  virtual void run(const Op& op) = 0;
};

// Begin and end of an operation, in seconds since the executor was made.
struct OpTime {
  double begin = 0.0;
  double end = 0.0;
};

// Counts how often the host blocks, by reason. A step has a few waits for any number of units.
class HostWaits {
 public:
  void count(const std::string& reason);
  const std::vector<std::pair<std::string, int64_t>>& counts() const { return counts_; }

 private:
  std::vector<std::pair<std::string, int64_t>> counts_;
};

class StepExecutor {
 public:
  // `lanes` must outlive the executor. `on_failure` gets the text of the first failure on the
  // thread that failed, so that it can release lanes that wait for other ranks.
  explicit StepExecutor(LaneStreams* lanes,
                        std::function<void(const std::string&)> on_failure = {});

  // HOST WAIT: the whole schedule is done on return. Throws the exception of the first operation
  // that failed; later operations are skipped, and no operation runs any more after the throw.
  void run(const StepSchedule& schedule, StepWork& work);
  // Returns the times of the last run, by operation.
  const std::vector<OpTime>& times() const { return times_; }
  double now() const;

 private:
  void run_op(const Op& op, StepWork& work, OpTime& time);
  void note_failure(std::exception_ptr error);

  LaneStreams* lanes_;
  std::function<void(const std::string&)> on_failure_;
  Mutex mutex_;
  std::exception_ptr failure_ LONGSHORE_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  std::vector<OpTime> times_;
  int64_t origin_nanoseconds_;
};

// LaneLedger: busy time and bytes of each lane in a pass, and the stalls of compute. A value;
// `account` makes it from the schedule and the times of its operations. Pure function.

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
