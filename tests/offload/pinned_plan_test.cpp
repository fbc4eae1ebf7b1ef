// A plan chooses what is registered with a GPU under a limit, and counts copies of the rest.
#include "offload/plan/pinned_plan.h"

#include <gtest/gtest.h>

#include "device/bounced_copies.h"
#include "offload/forecast/step_forecast.h"
#include "offload/plan/tier_plan.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

constexpr PinnableBytes kParts = {.state = 60 * kGiB, .gradients = 16 * kGiB, .inputs = 8 * kGiB};
constexpr Bytes kBuffers = kBounceBuffers * kBouncePieceBytes;

TEST(PinnedPlan, RegistersEverythingWithoutALimit) {
  const PinnedPlan plan = plan_pinned(kParts, {});
  EXPECT_TRUE(plan.everything());
  EXPECT_EQ(plan.registered, 84 * kGiB);
}

// Goal: the limit holds for parts and buffers together, and buffers come first.
TEST(PinnedPlan, KeepsToTheLimit) {
  struct Case {
    Bytes limit;
    bool state, gradients, inputs;
    Bytes buffers;
  };
  for (const Case& test :
       {Case{0, false, false, false, 0}, Case{kMiB, false, false, false, kMiB},
        Case{64 * kMiB, false, false, false, kBuffers},
        Case{8 * kGiB, false, false, false, kBuffers}, Case{9 * kGiB, false, false, true, kBuffers},
        Case{25 * kGiB, false, true, true, kBuffers},
        Case{84 * kGiB - 1, false, true, true, kBuffers},
        Case{84 * kGiB, true, true, true, kBuffers}}) {
    const PinnedPlan plan = plan_pinned(kParts, test.limit);
    EXPECT_EQ(plan.state, test.state) << test.limit;
    EXPECT_EQ(plan.gradients, test.gradients) << test.limit;
    EXPECT_EQ(plan.inputs, test.inputs) << test.limit;
    EXPECT_EQ(plan.copy_buffers, test.buffers) << test.limit;
    EXPECT_LE(plan.registered, test.limit);
  }
}

// Goal: buffers of less than 64 KiB are not made; larger limits make none larger than a piece.
TEST(PinnedPlan, BuffersHaveWholePages) {
  EXPECT_EQ(bounce_piece_bytes(0), 0);
  EXPECT_EQ(bounce_piece_bytes(4 * 64 * kKiB - 1), 0);
  EXPECT_EQ(bounce_piece_bytes(4 * 64 * kKiB), 64 * kKiB);
  EXPECT_EQ(bounce_piece_bytes(4 * 64 * kKiB + 4095), 64 * kKiB);
  EXPECT_EQ(bounce_piece_bytes(kGiB), kBouncePieceBytes);
}

// Goal: through buffers the slower of link and thread limits a copy; pageable memory takes both.
TEST(PinnedPlan, ForecastsCopiesOfTheRest) {
  const PinnedPlan buffers{.state = false, .copy_buffers = kBuffers};
  const PinnedPlan pageable{.state = false};
  EXPECT_EQ(unregistered_rate(25e9, 10e9, buffers), 10e9);
  EXPECT_EQ(unregistered_rate(6e9, 10e9, buffers), 6e9);
  EXPECT_DOUBLE_EQ(unregistered_rate(30e9, 15e9, pageable), 10e9);
  EXPECT_EQ(unregistered_rate(30e9, 0.0, pageable), 0.0) << "unknown";
}

// Goal: a GPU's plan counts the buffers exactly where something is not registered, by the key or by
// what the machine allows the ranks of a node together; a CPU's plan has none.
TEST(PinnedPlan, CountsBuffersOfTheRest) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device = DeviceKind::kCuda;
  Machine machine = made_up_machine();
  machine.gpus = {{.name = "Test GPU", .memory_bytes = 16 * kGiB, .compute_major = 9}};
  const auto host = [&] { return draft_tier_plan(inputs, machine).host; };
  const HostPlan all = host();
  EXPECT_TRUE(all.pinned.everything());
  ASSERT_GT(all.pinned.registered, 0);
  const auto buffers_of = [&](const HostPlan& plan) { return plan.total - all.total; };

  inputs.pinned_cap = all.pinned.registered;
  EXPECT_EQ(buffers_of(host()), 0);
  inputs.pinned_cap = 0;
  EXPECT_EQ(buffers_of(host()), 0);
  EXPECT_EQ(host().pinned.registered, 0);
  EXPECT_EQ(host().lines.size(), all.lines.size() + 1) << "a line says that there are none";

  inputs.pinned_cap.reset();
  machine.pinnable = all.pinned.registered - 1;
  EXPECT_EQ(buffers_of(host()), host().pinned.copy_buffers);
  EXPECT_LE(host().pinned.registered, *machine.pinnable);
  inputs.pinned_cap = 0;
  EXPECT_EQ(host().pinned.copy_buffers, 0) << "the smaller limit counts";

  inputs.device = DeviceKind::kCpu;
  EXPECT_EQ(host().pinned.registered, 0);
}

}  // namespace
}  // namespace longshore
