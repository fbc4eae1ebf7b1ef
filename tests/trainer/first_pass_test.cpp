// The first pass is checked against a plan that was not measured at the run's own shape. Made-up
// costs: 1 KiB forward and 3 KiB backward per position, twice that for the loss.
#include "trainer/loop/run_loop.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

class FirstPass : public testing::Test {
 protected:
  // The pass has half of a full micro-batch: 50 of 100 positions, documents of 30 and 20.
  static constexpr int64_t kPositions = 50;

  FirstPass() { set_source(CostSource::kFitted); }

  void set_source(CostSource source) {
    inputs_.costs = [source, costs = made_up_costs(model_.units.size())](int64_t positions,
                                                                         int64_t longest) {
      std::vector<UnitCost> marked = costs(positions, longest);
      for (UnitCost& cost : marked) cost.source = source;
      return marked;
    };
  }

  TierPlan plan(std::optional<Bytes> cap = std::nullopt) {
    inputs_.device_cap = cap;
    return draft_tier_plan(inputs_, made_up_machine());
  }

  void check(const TierPlan& plan, Bytes taken) {
    const std::vector<Batch> batches = {{tokens_, tokens_, tokens_, starts_}};
    check_first_pass(inputs_, plan, {.workspace = {.tensors_peak = taken}}, batches);
  }

  ModelSpec model_ = fakes::make_small_model(3, false);
  PlanInputs inputs_ = made_up_inputs(model_);
  std::vector<int64_t> tokens_ = std::vector<int64_t>(kPositions);
  std::vector<int64_t> starts_ = {0, 30, 50};
};

// A first pass within its plan continues.
TEST_F(FirstPass, MayTakeWhatThePlanSays) {
  EXPECT_NO_THROW(check(plan(), kPositions * 6 * kKiB));
}

// Twice the planned bytes at half of the positions end the run: a full micro-batch takes more.
TEST_F(FirstPass, EndsTheRunWhereFullMicroBatchesWillNotFit) {
  const TierPlan tight = plan();
  ASSERT_EQ(tight.device.limit, tight.device.total);
  try {
    check(tight, 2 * kPositions * 6 * kKiB);
    FAIL() << "the run goes on";
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kOutOfMemory);
    const std::string what = error.what();
    const std::string full = format_bytes(tight.device.owned + 2 * tight.device.workspace);
    for (const std::string& part :
         {format_bytes(2 * kPositions * 6 * kKiB), std::string("for 50 positions"), full,
          std::string("nothing was updated"), std::string("offload.device_memory")}) {
      EXPECT_NE(what.find(part), std::string::npos) << part << " in: " << what;
    }
  }
}

// A first pass above its plan continues if, and only if, the cap has room for a full micro-batch.
TEST_F(FirstPass, GoesOnWhereTheDeviceHasRoom) {
  const Bytes twice = 2 * kPositions * 6 * kKiB;
  const TierPlan tight = plan();
  const Bytes needed = tight.device.owned + 2 * tight.device.workspace;
  EXPECT_NO_THROW(check(plan(needed), twice));
  EXPECT_THROW(check(plan(needed - kDeviceBufferAlignment), twice), OutOfMemoryError);
}

// A measured plan is not checked against the first pass.
TEST_F(FirstPass, IsNotJudgedByAPlanThatWasMeasured) {
  set_source(CostSource::kMeasured);
  EXPECT_NO_THROW(check(plan(), kGiB));
}

// A rank without micro-batches is not checked.
TEST_F(FirstPass, OfARankWithoutMicroBatchesSaysNothing) {
  EXPECT_NO_THROW(check_first_pass(inputs_, plan(), {.workspace = {.tensors_peak = kGiB}}, {}));
}

}  // namespace
}  // namespace longshore
