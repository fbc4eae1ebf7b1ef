#include "bench/lab/timer_run.h"

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
#include "offload/staging/prefetcher.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kSlotBytes = 64;
// Indices of the meetings of all ranks.
constexpr size_t kReduction = 0, kTotals = 1, kCommitting = 2;
constexpr unsigned long kTimerSlackNanoseconds = 1;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Linux lets a sleeping thread oversleep by 50 us, which would be charged to the executor.
void wake_exactly() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds, 0, 0, 0);
}

}  // namespace

// A barrier of the ranks that run a collective.
class TimerRun::Meeting {
 public:
  explicit Meeting(int32_t ranks) : ranks_(ranks) {}

  // Waits for all ranks and returns the time at which the last one came. Throws once abandoned.
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

// Drives in one direction that serve several users concurrently.
class TimerRun::Drive {
 public:
  explicit Drive(int32_t users) : users_(users) {}

  // `seconds` is the duration while all users are served. Returns the end time.
  Clock::time_point serve(Clock::time_point begin, double seconds) {
    std::unique_lock lock(mutex_);
    advance();
    ++active_;
    double late = std::chrono::duration<double>(last_ - begin).count() * users_ / active_;
    const double target = served_ + seconds - std::max(late, 0.0);
    changed_.notify_all();
    while (served_ < target) {
      changed_.wait_until(lock, last_ + duration_of((target - served_) * active_ / users_));
      advance();
    }
    const Clock::time_point end = last_ - duration_of((served_ - target) * active_ / users_);
    --active_;
    changed_.notify_all();
    return end;
  }

 private:
  void advance() {
    const Clock::time_point now = Clock::now();
    if (active_ > 0) {
      served_ += std::chrono::duration<double>(now - last_).count() * users_ / active_;
    }
    last_ = now;
  }

  const double users_;
  std::mutex mutex_;
  std::condition_variable changed_;
  double active_ = 0.0;
  double served_ = 0.0;  // seconds of service for a user who is always active
  Clock::time_point last_ = Clock::now();
};

namespace {

// A rank's queue for the drives in one direction: one operation at a time, in order of arrival, but
// reads of parameters overtake.
class DriveLane {
 public:
  template <typename Serve>
  void serve(bool urgent, const Serve& serve) {
    std::unique_lock lock(mutex_);
    const auto me = waiting_.insert({!urgent, next_++}).first;
    Clock::time_point begin = Clock::now();
    if (busy_ || me != waiting_.begin()) {
      free_.wait(lock, [&] { return !busy_ && me == waiting_.begin(); });
      begin = std::max(begin, end_);  // a late wake-up of the thread costs the drive nothing
    }
    waiting_.erase(me);
    busy_ = true;
    lock.unlock();
    const Clock::time_point end = serve(begin);
    lock.lock();
    busy_ = false;
    end_ = end;
    free_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  std::set<std::pair<bool, int64_t>> waiting_;  // by urgency, then by arrival
  int64_t next_ = 0;
  bool busy_ = false;
  Clock::time_point end_;
};

}  // namespace

class TimerRun::Rank final : public StepWork {
 public:
  Rank(const TimedStep* step, TimerRun* run, int32_t rank)
      : step_(step),
        run_(run),
        rank_(static_cast<size_t>(rank)),
        memory_(static_cast<size_t>(step->slots * kSlotBytes)),
        ring_(slots_of(memory_)),
        lanes_(make_lanes()),
        executor_(&lanes_, [run](const std::string&) { run->abandon(); }) {}

  void step() {
    pass(step_->schedule, step_->seconds);
    if (!step_->updates.ops.empty()) pass(step_->updates, step_->update_seconds);
    run_->meetings_[kTotals]->meet();
  }

  void run(const Op& op) override {
    const Clock::time_point begin = Clock::now();
    const auto index = static_cast<size_t>(&op - schedule_->ops.data());
    const double seconds = seconds_->at(index) * share_of(op);
    const Clock::duration duration = duration_of(seconds);
    switch (op.kind) {
      case OpKind::kFetch:
        ring_.begin_fill(op.placed().front(), StateVersion(), kSlotBytes);
        std::this_thread::sleep_until(begin + duration);
        if (!step_->gathers) ring_.end_fill(op.placed().front(), StateVersion());
        return;
      case OpKind::kGather:
        std::this_thread::sleep_until(run_->gather_of(rank_).meet() + duration);
        ring_.end_fill(op.placed().front(), StateVersion());
        return;
      case OpKind::kReduce:
        std::this_thread::sleep_until(run_->meetings_[kReduction]->meet() + duration);
        return;
      case OpKind::kForward:
      case OpKind::kBackward: {
        std::vector<UnitLease> leases;
        for (const Placed& placed : op.placed()) {
          leases.push_back(ring_.lease(placed, StateVersion()));
        }
        std::this_thread::sleep_until(begin + duration);
        return;
      }
      case OpKind::kReadState:
      case OpKind::kReadParameters:
      case OpKind::kReadInput:
        use(run_->reading_, reads_, op.kind == OpKind::kReadParameters, seconds);
        return;
      case OpKind::kCommit:
        run_->meetings_[kCommitting]->meet();
        [[fallthrough]];
      case OpKind::kWriteState:
      case OpKind::kWriteInput:
        use(run_->writing_, writes_, false, seconds);
        return;
      default:
        std::this_thread::sleep_until(begin + duration);
    }
  }

 private:
  void pass(const StepSchedule& schedule, const std::vector<double>& seconds) {
    schedule_ = &schedule;
    seconds_ = &seconds;
    executor_.run(schedule, *this);
  }
  double share_of(const Op& op) const {
    if (lane_of(op.kind) != Lane::kCompute || run_->how_.compute.empty()) return 1.0;
    return run_->how_.compute.at(rank_);
  }
  void use(const std::vector<std::unique_ptr<Drive>>& drives, DriveLane& lane, bool urgent,
           double seconds) {
    Drive& drive = *drives.at(drives.size() == 1 ? 0 : rank_);
    lane.serve(urgent, [&](Clock::time_point begin) { return drive.serve(begin, seconds); });
  }
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
  const size_t rank_;
  // The running pass.
  const StepSchedule* schedule_ = nullptr;
  const std::vector<double>* seconds_ = nullptr;
  std::vector<std::byte> memory_;
  StageRing ring_;
  DriveLane reads_, writes_;
  LaneStreams lanes_;
  StepExecutor executor_;
};

TimerRun::TimerRun(const TimedStep* step, TimerRanks ranks) : how_(std::move(ranks)) {
  const int32_t group = how_.shard_ranks > 0 ? how_.shard_ranks : how_.ranks;
  for (int32_t first = 0; first < how_.ranks; first += group) {
    gathers_.push_back(std::make_unique<Meeting>(group));
  }
  for (auto& meeting : meetings_) meeting = std::make_unique<Meeting>(how_.ranks);
  for (auto* drives : {&reading_, &writing_}) {
    for (int32_t i = 0; i < (how_.share_drives ? 1 : how_.ranks); ++i) {
      drives->push_back(std::make_unique<Drive>(how_.share_drives ? how_.ranks : 1));
    }
  }
  for (int32_t i = 0; i < how_.ranks; ++i) ranks_.push_back(std::make_unique<Rank>(step, this, i));
}

TimerRun::~TimerRun() = default;

TimerRun::Meeting& TimerRun::gather_of(size_t rank) {
  return *gathers_.at(rank * gathers_.size() / ranks_.size());
}

void TimerRun::abandon() {
  for (const auto& meeting : gathers_) meeting->abandon();
  for (const auto& meeting : meetings_) meeting->abandon();
}

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
