#include "offload/schedule/step_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "device/thread_stream.h"
#include "offload/schedule/lane_ledger.h"

namespace longshore {
namespace {

LaneStreams make_lanes(std::optional<StreamDelays> delays = std::nullopt) {
  LaneStreams lanes;
  for (size_t i = 0; i < kLaneCount; ++i) {
    lanes[i] = std::make_unique<ThreadStream>(std::string(name_of(static_cast<Lane>(i))), delays);
  }
  return lanes;
}

// Writes down the order in which operations end.
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

// fetch 0, fetch 1, forward 0 (after fetch 0), forward 1, fetch 2 (after forward 0), forward 2.
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

// The first failure counts; nothing runs when run() is back, and others are told once.
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

// 1 s of fetch, then compute of 2 s beside a fetch of 3 s that the next compute waits for.
TEST(LaneLedger, NamesWhatComputeWaitedFor) {
  const StepSchedule schedule = three_units();
  const std::vector<OpTime> times = {{0.0, 1.0}, {1.0, 4.0}, {1.0, 3.0},
                                     {4.0, 5.0}, {4.0, 4.5}, {5.0, 7.0}};
  const LaneLedger ledger = account(schedule, times, 0.0);
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kH2D).busy_seconds, 4.5);
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kCompute).busy_seconds, 5.0);
  // 1 s at the start, 1 s before the second unit; the third fetch is ready in time.
  EXPECT_DOUBLE_EQ(ledger.of(Lane::kH2D).stall_seconds, 2.0);
}

}  // namespace
}  // namespace longshore
