#include "offload/schedule/step_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <stdexcept>

#include "device/thread_stream.h"

namespace longshore {
namespace {

LaneStreams make_lanes(std::optional<StreamDelays> delays = std::nullopt) {
  return make_lane_streams([&delays](Lane, const std::string& name) {
    return std::make_unique<ThreadStream>(name, delays);
  });
}

// Recorder: records the order in which operations end.
class Recorder : public StepWork {
 public:
  explicit Recorder(std::optional<UnitId> fails = std::nullopt) : fails_(fails) {}
  void run(const Op& op) override {
    if (fails_ == op.unit) throw std::runtime_error("unit " + std::to_string(op.unit.value));
    const std::lock_guard lock(mutex_);
    ended.push_back(&op);
  }
  std::vector<const Op*> ended;

 private:
  std::optional<UnitId> fails_;
  std::mutex mutex_;
};

// Makes fetch 0, 1, forward 0 (after fetch 0), forward 1, fetch 2 (after forward 0), forward 2.
StepSchedule three_units() {
  StepSchedule schedule;
  schedule.ops = {{.kind = OpKind::kFetch, .unit = UnitId(0)},
                  {.kind = OpKind::kFetch, .unit = UnitId(1)},
                  {.kind = OpKind::kForward, .unit = UnitId(0), .after = {0}},
                  {.kind = OpKind::kForward, .unit = UnitId(1), .after = {1}},
                  {.kind = OpKind::kFetch, .unit = UnitId(2), .after = {2}},
                  {.kind = OpKind::kForward, .unit = UnitId(2), .after = {4}}};
  return schedule;
}

// Operations keep the order of lanes and waits, whatever the delays.
TEST(StepExecutor, KeepsTheOrderOfLanesAndWaits) {
  const StepSchedule schedule = three_units();
  for (uint64_t seed = 0; seed < 30; ++seed) {
    LaneStreams lanes = make_lanes(StreamDelays{.seed = seed, .most_microseconds = 200});
    StepExecutor executor(&lanes);
    Recorder recorder;
    executor.run(schedule, recorder);
    ASSERT_EQ(recorder.ended.size(), schedule.ops.size());
    const auto place = [&](size_t op) {
      return std::ranges::find(recorder.ended, &schedule.ops[op]) - recorder.ended.begin();
    };
    for (const auto& [before, after] : std::vector<std::pair<size_t, size_t>>{
             {0, 1}, {1, 4}, {0, 2}, {1, 3}, {2, 3}, {2, 4}, {4, 5}, {3, 5}}) {
      EXPECT_LT(place(before), place(after)) << before << " before " << after;
      EXPECT_LE(executor.times()[before].end, executor.times()[after].begin);
    }
  }
}

// A wide lane runs two operations at once; the third begins when the first is done.
TEST(StepExecutor, HasTwoOperationsOfAWideLaneUnderWay) {
  class Meeting : public StepWork {
   public:
    void run(const Op& op) override {
      if (op.unit.value < 2) both_.arrive_and_wait();
    }

   private:
    std::latch both_{2};
  };
  StepSchedule schedule;
  for (int32_t u = 0; u < 3; ++u) {
    schedule.ops.push_back({.kind = OpKind::kReadInput, .unit = UnitId(u)});
  }
  LaneStreams lanes = make_lanes();
  StepExecutor executor(&lanes);
  Meeting work;
  executor.run(schedule, work);
  EXPECT_LE(executor.times()[0].end, executor.times()[2].begin);
}

// A run ends with its first failure; nothing runs afterwards, and other ranks are told once.
TEST(StepExecutor, EndsWithTheFirstFailure) {
  const StepSchedule schedule = three_units();
  LaneStreams lanes = make_lanes();
  std::vector<std::string> told;
  StepExecutor executor(&lanes, [&told](const std::string& text) { told.push_back(text); });
  Recorder recorder(UnitId(1));
  try {
    executor.run(schedule, recorder);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "unit 1");
  }
  EXPECT_EQ(told, std::vector<std::string>{"unit 1"});
  EXPECT_TRUE(
      std::ranges::none_of(recorder.ended, [](const Op* op) { return op->unit == UnitId(2); }));
}

// The ledger names the lane that compute waited for: 1 s of fetch, then 2 s of compute beside a
// fetch of 3 s that the next compute waits for.
TEST(LaneLedger, NamesWhatComputeWaitedFor) {
  const StepSchedule schedule = three_units();
  const std::vector<OpTime> times = {{0.0, 1.0}, {1.0, 4.0}, {1.0, 3.0},
                                     {4.0, 5.0}, {4.0, 4.5}, {5.0, 7.0}};
  const LaneLedger ledger = account(schedule, times, 0.0);
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kH2D).busy_seconds, 4.5);
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kCompute).busy_seconds, 5.0);
  // Compute waits 1 s at the start and 1 s before the second unit; the third fetch is in time.
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kH2D).stall_seconds, 2.0);
}

// Goal: a stall is followed to its cause: a read of 2 s, then its load of 1 s, then compute;
// another load kept the load's lane busy for the first 0.5 s.
TEST(LaneLedger, FollowsAStallToItsCause) {
  StepSchedule schedule;
  schedule.ops = {{.kind = OpKind::kFetch, .unit = UnitId(0)},
                  {.kind = OpKind::kReadInput, .unit = UnitId(1)},
                  {.kind = OpKind::kLoadInput, .unit = UnitId(1), .after = {1}},
                  {.kind = OpKind::kBackward, .unit = UnitId(1), .after = {0, 2}}};
  const std::vector<OpTime> times = {{0.0, 0.5}, {0.0, 2.0}, {2.0, 3.0}, {3.0, 4.0}};
  const LaneLedger ledger = account(schedule, times, 0.0);
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kH2D).stall_seconds, 1.0);
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kRead).stall_seconds, 2.0);
}

// Among several lanes that compute waits for, the last one to end is named.
TEST(LaneLedger, NamesTheLastOfSeveralCauses) {
  for (const bool gather_is_last : {true, false}) {
    StepSchedule schedule;
    schedule.ops = {{.kind = OpKind::kFetch, .unit = UnitId(0)},
                    {.kind = OpKind::kGather, .unit = UnitId(1)},
                    {.kind = OpKind::kForward, .unit = UnitId(1), .after = {0, 1}}};
    const std::vector<OpTime> times = {
        {0.0, gather_is_last ? 1.0 : 3.0}, {0.0, gather_is_last ? 3.0 : 1.0}, {3.0, 4.0}};
    const LaneLedger ledger = account(schedule, times, 0.0);
    EXPECT_DOUBLE_EQ(ledger.of(Lane::kGather).stall_seconds, gather_is_last ? 3.0 : 0.0);
    EXPECT_DOUBLE_EQ(ledger.of(Lane::kH2D).stall_seconds, gather_is_last ? 0.0 : 3.0);
  }
}

}  // namespace
}  // namespace longshore
