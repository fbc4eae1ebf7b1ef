#include "trainer/bench/timer_run.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "device/thread_stream.h"
#include "offload/schedule/step_executor.h"
#include "offload/staging/stage_ring.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kSlotBytes = 64;
constexpr unsigned long kTimerSlackNanoseconds = 1;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Linux lets a sleeping thread oversleep by 50 us, which would be charged to the executor.
void wake_exactly() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds, 0, 0, 0);
}

// A rank's drives in one direction: one operation at a time, in the order in which they come,
// reads of parameters before others that wait.
class DriveLane {
 public:
  void sleep(bool urgent, Clock::duration duration) {
    std::unique_lock lock(mutex_);
    const auto me = waiting_.insert({!urgent, next_++}).first;
    Clock::time_point begin = Clock::now();
    if (busy_ || me != waiting_.begin()) {
      free_.wait(lock, [&] { return !busy_ && me == waiting_.begin(); });
      begin = std::max(begin, end_);  // that its thread woke up late costs the drive nothing
    }
    waiting_.erase(me);
    busy_ = true;
    lock.unlock();
    std::this_thread::sleep_until(begin + duration);
    lock.lock();
    busy_ = false;
    end_ = begin + duration;
    free_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  std::set<std::pair<bool, int64_t>> waiting_;  // by urgency, then as they came
  int64_t next_ = 0;
  bool busy_ = false;
  Clock::time_point end_;
};

}  // namespace

// Where ranks meet for a collective.
class TimerRun::Meeting {
 public:
  explicit Meeting(int32_t ranks) : ranks_(ranks) {}

  // Returns when all have come: the time at which the last one came. Throws once abandoned.
  Clock::time_point meet() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++here_ == ranks_) {
      here_ = 0;
      ++round_;
      begin_ = Clock::now();
      all_here_.notify_all();
      return begin_;
    }
    all_here_.wait(lock, [&] { return round_ != round || abandoned_; });
    LONGSHORE_CHECK(round_ != round) << "another rank failed";
    return begin_;
  }
  void abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    all_here_.notify_all();
  }

 private:
  const int32_t ranks_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int32_t here_ = 0;
  int64_t round_ = 0;
  Clock::time_point begin_;
  bool abandoned_ = false;
};

class TimerRun::Rank final : public StepWork {
 public:
  Rank(const TimedStep* step, TimerRun* run)
      : step_(step),
        run_(run),
        memory_(static_cast<size_t>(step->slots * kSlotBytes)),
        ring_(slots_of(memory_)),
        lanes_(make_lanes()),
        executor_(&lanes_, [run](const std::string&) {
          for (const auto& meeting : run->meetings_) meeting->abandon();
        }) {}

  void step() {
    executor_.run(step_->schedule, *this);
    run_->meetings_[2]->meet();
  }

  void run(const Op& op) override {
    const Clock::time_point begin = Clock::now();
    const auto index = static_cast<size_t>(&op - step_->schedule.ops.data());
    const Clock::duration duration = duration_of(step_->seconds.at(index));
    switch (op.kind) {
      case OpKind::kFetch:
        ring_.begin_fill(op.slots.front(), StateVersion(), kSlotBytes);
        std::this_thread::sleep_until(begin + duration);
        if (!step_->gathers) ring_.end_fill(op.slots.front(), StateVersion());
        return;
      case OpKind::kGather:
        std::this_thread::sleep_until(run_->meetings_[0]->meet() + duration);
        ring_.end_fill(op.slots.front(), StateVersion());
        return;
      case OpKind::kReduce:
        std::this_thread::sleep_until(run_->meetings_[1]->meet() + duration);
        return;
      case OpKind::kForward:
      case OpKind::kBackward: {
        std::vector<UnitLease> leases;
        for (const Placed& placed : op.slots) {
          leases.push_back(ring_.lease(placed, StateVersion()));
        }
        std::this_thread::sleep_until(begin + duration);
        return;
      }
      case OpKind::kReadState:
      case OpKind::kReadParameters:
        reads_.sleep(op.kind == OpKind::kReadParameters, duration);
        return;
      case OpKind::kCommit:
        run_->meetings_[3]->meet();
        [[fallthrough]];
      case OpKind::kWriteState:
        writes_.sleep(false, duration);
        return;
      default:
        std::this_thread::sleep_until(begin + duration);
    }
  }

 private:
  static std::vector<std::span<std::byte>> slots_of(std::vector<std::byte>& memory) {
    std::vector<std::span<std::byte>> slots;
    for (size_t i = 0; i < memory.size(); i += kSlotBytes) {
      slots.push_back(std::span(memory).subspan(i, kSlotBytes));
    }
    return slots;
  }
  static LaneStreams make_lanes() {
    return make_lane_streams([](Lane, const std::string& name) {
      return std::make_unique<ThreadStream>(name, std::nullopt, wake_exactly);
    });
  }

  const TimedStep* step_;
  TimerRun* run_;
  std::vector<std::byte> memory_;
  StageRing ring_;
  DriveLane reads_, writes_;
  LaneStreams lanes_;
  StepExecutor executor_;
};

TimerRun::TimerRun(const TimedStep* step, int32_t ranks) {
  for (auto& meeting : meetings_) meeting = std::make_unique<Meeting>(ranks);
  for (int32_t i = 0; i < ranks; ++i) ranks_.push_back(std::make_unique<Rank>(step, this));
}

TimerRun::~TimerRun() = default;

double TimerRun::step_seconds() {
  std::vector<std::exception_ptr> errors(ranks_.size());
  std::vector<std::thread> hosts;
  const Clock::time_point begin = Clock::now();
  for (size_t i = 1; i < ranks_.size(); ++i) {
    hosts.emplace_back([&, i] {
      try {
        ranks_[i]->step();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  try {
    ranks_.front()->step();
  } catch (...) {
    errors.front() = std::current_exception();
  }
  for (std::thread& host : hosts) host.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return seconds;
}

}  // namespace longshore
