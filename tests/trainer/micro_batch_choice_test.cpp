// train.micro_batch = "auto". Goal: the sizes to choose from keep ranks even, and the choice is the
// fastest that fits by what was measured.
#include "trainer/setup/micro_batch_choice.h"

#include <gtest/gtest.h>

#include "tests/fakes/command_run.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_flops.h"

namespace longshore {
namespace {

using Sizes = std::vector<int64_t>;

// Sizes are powers of two and divisors of a rank's sequences, and no rank gets more of a step.
TEST(MicroBatchSizes, KeepRanksEven) {
  EXPECT_EQ(micro_batch_sizes(8, 1, 512), (Sizes{1, 2, 4, 8}));
  EXPECT_EQ(micro_batch_sizes(12, 1, 512), (Sizes{1, 2, 3, 4, 6, 8, 12}));
  EXPECT_EQ(micro_batch_sizes(8, 2, 512), (Sizes{1, 2, 4}));
  // With 2 the first of two ranks would have four sequences of six.
  EXPECT_EQ(micro_batch_sizes(6, 2, 512), (Sizes{1, 3}));
  EXPECT_EQ(micro_batch_sizes(4, 8, 512), (Sizes{1}));
}

// Larger micro-batches than were measured to help are left out; one sequence stays.
TEST(MicroBatchSizes, EndWhereMoreRowsHelpNoMore) {
  EXPECT_EQ(micro_batch_sizes(64, 1, 4096), (Sizes{1, 2, 4}));
  EXPECT_EQ(micro_batch_sizes(64, 1, 16384), (Sizes{1}));
  EXPECT_EQ(micro_batch_sizes(64, 1, 100'000), (Sizes{1}));
}

// Forecasts decide, and the smallest of equal ones; without forecasts the device decides.
TEST(PreferredMicroBatch, IsTheSmallestOfTheFastest) {
  EXPECT_EQ(preferred_micro_batch({1, 2, 4}, {3.0, 2.0, 2.5}, DeviceKind::kCpu), 2);
  EXPECT_EQ(preferred_micro_batch({1, 2, 4}, {3.0, 2.01, 2.0}, DeviceKind::kCuda), 2);
  EXPECT_EQ(preferred_micro_batch({1, 2, 4}, {3.0, 2.1, 2.0}, DeviceKind::kCuda), 4);
  EXPECT_EQ(preferred_micro_batch({1, 2, 4}, {}, DeviceKind::kCuda), 4);
  EXPECT_EQ(preferred_micro_batch({1, 2, 4}, {}, DeviceKind::kCpu), 1);
}

class AutoMicroBatch : public testing::Test {
 protected:
  AutoMicroBatch() {
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", model_}).exit_code, 0);
  }

  MeasuredRun set_up(const std::string& micro_batch, const std::string& cap = "auto") {
    return MeasuredRun(OpenedRun(read_run({.files = {},
                                           .overrides = {{"run.dir", directory_.file("run")},
                                                         {"model.path", model_},
                                                         {"data.train", "[\"train.jsonl\"]"},
                                                         {"data.cache", directory_.file("cache")},
                                                         {"data.max_tokens", "32"},
                                                         {"train.sequences_per_step", "8"},
                                                         {"train.micro_batch", micro_batch},
                                                         {"precision.compute", "fp32"},
                                                         {"offload.device_memory", cap},
                                                         {"device.threads", "1"},
                                                         {"device.kind", "cpu"}}})));
  }

  // Records that a position takes these seconds in micro-batches of one and of four sequences.
  void measured(double of_one, double of_four) {
    const MeasuredRun run = set_up("1");
    const KnownRates known = known_rates(run);
    known.keep(read_machine("cpu-desktop-ddr5"));
    for (const UnitSpec& unit : run.source->spec().units) {
      known.keep_unit(text_of_unit(run, unit.id),
                      {{32, {of_one, 3.0 * of_one}}, {128, {of_four, 3.0 * of_four}}});
    }
  }

 private:
  TemporaryDirectory directory_;
  const std::string model_ = directory_.file("model");
};

// Goal: a CPU without measured units takes one sequence, and the number replaces "auto".
TEST_F(AutoMicroBatch, IsOneOnACpuOfUnknownSpeed) {
  EXPECT_EQ(set_up("auto").config.train.micro_batch, 1);
}

// Goal: units that were timed at two sizes decide.
TEST_F(AutoMicroBatch, IsTheFastestByMeasuredUnits) {
  measured(4e-5, 2e-5);
  const MeasuredRun fast = set_up("auto");
  EXPECT_EQ(fast.config.train.micro_batch, 8);
  EXPECT_EQ(fast.inputs.micro_batch, 8);
  EXPECT_EQ(fast.plan().step.micro_batches, 1);
  measured(1e-5, 4e-5);
  EXPECT_EQ(set_up("auto").config.train.micro_batch, 1);
}

// Goal: the choice fits, and its plan is the one of a run file that says the number.
TEST_F(AutoMicroBatch, FitsAsARunFileWithItsNumber) {
  measured(4e-5, 2e-5);
  const auto need = [&](const std::string& size) { return set_up(size).plan().device.total; };
  const Bytes two = need("2"), four = need("4");
  ASSERT_LT(two, four);
  const std::string cap = std::to_string((two + four) / 2) + "B";
  const MeasuredRun chosen = set_up("auto", cap);
  EXPECT_EQ(chosen.config.train.micro_batch, 2);
  EXPECT_EQ(chosen.plan().device.total, two);
}

}  // namespace
}  // namespace longshore
