// Plans with states of decoded sequences: their bytes, the number of sequences, weights that stay
// in their slots, refusals.
#include "offload/plan/decode_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "offload/plan/plan_text.h"
#include "offload/schedule/schedule_validator.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

constexpr Bytes kOfToken = 4096;

DecodeUse decoding(int64_t sequences, int64_t longest) {
  return {.sequences = sequences, .longest = longest, .sequence_bytes = [](int64_t tokens) {
            return 1024 + tokens * kOfToken;
          }};
}

Bytes bytes_of(const TierPlan& plan, BufferKind kind) {
  Bytes sum = 0;
  for (const PlannedBuffer& buffer : plan.device.buffers) {
    sum += buffer.key.kind == kind ? buffer.bytes : 0;
  }
  return sum;
}

bool fetches(const StepSchedule& schedule) {
  return std::ranges::any_of(schedule.ops, [](const Op& op) {
    return op.kind == OpKind::kFetch || op.kind == OpKind::kReadParameters ||
           op.kind == OpKind::kGather;
  });
}

// Goal: the states of all sequences are a buffer of exactly their bytes, and a process that only
// decodes has neither gradients, on device or host, nor passes that train.
TEST(DecodePlan, HasTheStatesAndNothingOfTraining) {
  const ModelSpec model = fakes::make_small_model(3, true);
  const TierPlan plan =
      make_decoding_plan(made_up_inputs(model), made_up_machine(), decoding(5, 40));
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.decode.sequences, 5);
  EXPECT_EQ(plan.decode.longest, 40);
  EXPECT_EQ(plan.device.states.bytes, 5 * (1024 + 40 * kOfToken));
  EXPECT_EQ(bytes_of(plan, BufferKind::kSequenceStates), plan.device.states.bytes);
  for (const BufferKind none : {BufferKind::kGradient, BufferKind::kWaitingGradient,
                                BufferKind::kReduceScratch, BufferKind::kDrainStaging}) {
    EXPECT_EQ(bytes_of(plan, none), 0);
  }
  EXPECT_EQ(plan.host.gradients, 0);
  EXPECT_FALSE(plan.step.trains());
  EXPECT_TRUE(plan.step.schedules.first.ops.empty());
  EXPECT_EQ(plan.step.micro_batches, 1);
  EXPECT_LT(plan.device.total,
            draft_tier_plan(made_up_inputs(model), made_up_machine()).device.total +
                plan.device.states.bytes);
}

// Goal: where all units fit the device, each has a slot of its own and the next pass fetches
// nothing; where they do not, they pass through the slots, and the plan says how many bytes a token
// moves.
TEST(DecodePlan, KeepsWeightsInTheirSlotsWhereTheyFit) {
  const ModelSpec model = fakes::make_small_model(6, false);
  PlanInputs inputs = made_up_inputs(model);
  const TierPlan stays = make_decoding_plan(inputs, made_up_machine(), decoding(4, 50));
  EXPECT_TRUE(stays.decode.weights_stay);
  EXPECT_EQ(stays.device.slots, 8);
  EXPECT_TRUE(fetches(stays.step.schedules.forward));
  EXPECT_FALSE(stays.step.schedules.forward_again.ops.empty());
  EXPECT_FALSE(fetches(stays.step.schedules.forward_again));
  EXPECT_EQ(stays.step.moved_by_forward(), 0);
  EXPECT_NE(decoding_text(stays).find("a token moves none"), std::string::npos);
  inputs.micro_batch = 1;  // so that no smaller micro-batch makes room for the last byte
  inputs.device_cap = make_decoding_plan(inputs, made_up_machine(), decoding(1, 50)).device.total;
  const TierPlan least = make_decoding_plan(inputs, made_up_machine(), decoding(1, 50));
  EXPECT_TRUE(least.decode.weights_stay);
  inputs.device_cap = least.device.total - 1;
  const TierPlan passes = make_decoding_plan(inputs, made_up_machine(), decoding(1, 50));
  EXPECT_FALSE(passes.decode.weights_stay);
  EXPECT_EQ(passes.device.slots, 2);
  EXPECT_TRUE(passes.step.schedules.forward_again.ops.empty());
  Bytes all = 0;
  for (const FlatLayout& layout : make_layouts(model, 1, inputs.state.compute)) {
    all += layout.flat_bytes();
  }
  EXPECT_EQ(passes.step.moved_by_forward(), all);
  EXPECT_NE(decoding_text(passes).find("moves " + format_bytes(all)), std::string::npos)
      << decoding_text(passes);
  const auto json = plan_to_json(passes, made_up_machine());
  EXPECT_EQ(json.at("decoding").at("moved_bytes_per_token"), all);
  EXPECT_EQ(json.at("decoding").at("sequences"), 1);
}

// Goal: on the CPU device slots are a second copy in the same memory, so weights stay only if host
// and device bytes together fit it.
TEST(DecodePlan, KeepsWeightsOnTheCpuDeviceOnlyWhereBothCopiesFit) {
  const ModelSpec model = fakes::make_small_model(6, false);
  PlanInputs inputs = made_up_inputs(model);
  const TierPlan stays = make_decoding_plan(inputs, made_up_machine(), decoding(1, 50));
  ASSERT_TRUE(stays.decode.weights_stay);
  inputs.micro_batch = 1;
  inputs.host_cap = make_decoding_plan(inputs, made_up_machine(), decoding(1, 50)).host.total;
  EXPECT_TRUE(make_decoding_plan(inputs, made_up_machine(), decoding(1, 50)).decode.weights_stay);
  inputs.host_cap = *inputs.host_cap - 1;
  const TierPlan passes = make_decoding_plan(inputs, made_up_machine(), decoding(1, 50));
  EXPECT_FALSE(passes.decode.weights_stay);
  EXPECT_TRUE(passes.fits());
}

// Goal: of the sequences that are asked for, as many are decoded at the same time as the cap holds,
// never more than 64, and never more than a call has rows.
TEST(DecodePlan, DecodesAsManySequencesAsTheCapHolds) {
  const ModelSpec model = fakes::make_small_model(2, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.micro_batch = 1;
  EXPECT_EQ(make_decoding_plan(inputs, made_up_machine(), decoding(1000, 30)).decode.sequences, 50);
  inputs.micro_batch = 2;
  EXPECT_EQ(make_decoding_plan(inputs, made_up_machine(), decoding(1000, 30)).decode.sequences, 64);
  inputs.micro_batch = 1;
  for (const int64_t holds : {1, 2, 7, 31}) {
    inputs.device_cap.reset();
    const TierPlan exact = make_decoding_plan(inputs, made_up_machine(), decoding(holds, 50));
    inputs.device_cap = exact.device.total;
    const TierPlan most = make_decoding_plan(inputs, made_up_machine(), decoding(40, 50));
    EXPECT_EQ(most.decode.sequences, holds);
    EXPECT_TRUE(most.decode.weights_stay);
    EXPECT_LE(most.device.total, *inputs.device_cap);
  }
}

// Goal: many sequences over weights that pass are preferred to a few over weights that stay.
TEST(DecodePlan, PassesWeightsWhereTheyWouldLeaveRoomForFewSequences) {
  const ModelSpec model = fakes::make_small_model(30, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.micro_batch = 1;
  inputs.device_cap = make_decoding_plan(inputs, made_up_machine(), decoding(1, 2)).device.total;
  const TierPlan plan = make_decoding_plan(inputs, made_up_machine(), decoding(40, 2));
  EXPECT_FALSE(plan.decode.weights_stay);
  EXPECT_GT(plan.decode.sequences, 8);
}

// Goal: a cap that holds no sequence is refused with the bytes of one, the tokens that would fit
// and the keys to change; with that length the plan fits, with one token more it does not.
TEST(DecodePlan, RefusesASequenceThatDoesNotFitAndSaysWhichWould) {
  const ModelSpec model = fakes::make_small_model(2, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device_cap = make_decoding_plan(inputs, made_up_machine(), decoding(1, 20)).device.total;
  const auto message = [&](int64_t longest) -> std::string {
    try {
      make_decoding_plan(inputs, made_up_machine(), decoding(3, longest));
    } catch (const DoesNotFitError& error) {
      return error.what();
    }
    return "";
  };
  const std::string refusal = message(5000);
  EXPECT_NE(
      refusal.find("one sequence of 5000 tokens take " + format_bytes(1024 + 5000 * kOfToken)),
      std::string::npos)
      << refusal;
  for (const std::string key : {"data.max_tokens", "--max-new-tokens", "offload.device_memory"}) {
    EXPECT_NE(refusal.find(key), std::string::npos) << key << " in " << refusal;
  }
  const std::string before = "sequences of at most ";
  const size_t at = refusal.find(before);
  ASSERT_NE(at, std::string::npos) << refusal;
  const int64_t tokens = std::stoll(refusal.substr(at + before.size()));
  EXPECT_GE(tokens, 20);
  EXPECT_EQ(message(tokens), "");
  EXPECT_NE(message(tokens + 1), "");
}

// Goal: where the plan does not fit without any sequence, the refusal is that of any plan.
TEST(DecodePlan, RefusesAModelThatDoesNotFitAsAnyPlanDoes) {
  const ModelSpec model = fakes::make_small_model(2, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device_cap = 4 * kKiB;
  try {
    make_decoding_plan(inputs, made_up_machine(), decoding(1, 20));
    ADD_FAILURE() << "it fits";
  } catch (const DoesNotFitError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("device memory: the plan needs"), std::string::npos) << text;
  }
}

// Goal: a run that trains and decodes samples has both in the same bytes: the larger counts.
TEST(DecodePlan, OfATrainingRunSharesTheBytesOfGradients) {
  const ModelSpec model = fakes::make_small_model(3, true);
  PlanInputs inputs = made_up_inputs(model);
  const TierPlan without = draft_tier_plan(inputs, made_up_machine());
  const Bytes gradients = bytes_of(without, BufferKind::kGradient) +
                          bytes_of(without, BufferKind::kWaitingGradient) +
                          bytes_of(without, BufferKind::kDrainStaging);
  ASSERT_GT(gradients, 2 * kOfToken);
  inputs.decode = decoding(1, 1);
  const TierPlan few = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(few.device.total, without.device.total);
  EXPECT_EQ(few.device.states.begin, bytes_of(few, BufferKind::kSlot));
  inputs.decode = decoding(2, gradients / kOfToken);
  const TierPlan many = draft_tier_plan(inputs, made_up_machine());
  const Bytes states = buffer_bytes(many.device.states.bytes);
  EXPECT_EQ(many.device.total, without.device.total + states - gradients);
  EXPECT_EQ(bytes_of(many, BufferKind::kSequenceStates), states - gradients);
  EXPECT_TRUE(many.step.trains());
}

// Goal: beside training as many samples are decoded at the same time as fit, at least one.
TEST(DecodePlan, DecodesAsManySamplesAsFitBesideTraining) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.decode = decoding(9, 50);
  inputs.device_cap = draft_tier_plan(inputs, made_up_machine()).device.total;
  inputs.decode = {};
  const auto fitting = [&](int64_t asked) {
    return decoding_beside_training(inputs, made_up_machine(), decoding(asked, 50)).sequences;
  };
  EXPECT_EQ(fitting(4), 4);
  EXPECT_EQ(fitting(30), 9);
  inputs.device_cap = 4 * kKiB;
  EXPECT_EQ(fitting(30), 1);
}

// Goal: a forward pass without fetches is there wherever the slots hold every unit, for parameters
// in host memory and on drives, over one rank and several.
TEST(DecodePlan, HasAPassWithoutFetchesOnEveryTier) {
  const ModelSpec model = fakes::make_small_model(3, true);
  for (const bool drives : {false, true}) {
    for (const int32_t ranks : {1, 2}) {
      PlanInputs inputs = made_up_inputs(model);
      inputs.nvme.state = inputs.nvme.parameters = drives;
      if (drives) inputs.nvme.directories = {"a"};
      inputs.topology = make_topology(ShardStrategy::kShardGradOp, ranks, ranks);
      inputs.ranks_per_node = ranks;
      inputs.decode = decoding(2, 20);
      inputs.decode.weights_stay = true;
      const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
      EXPECT_TRUE(fetches(plan.step.schedules.forward));
      ASSERT_EQ(plan.step.schedules.forward_again.ops.size(), model.units.size());
      for (const Op& op : plan.step.schedules.forward_again.ops) {
        EXPECT_EQ(op.kind, OpKind::kForward);
      }
      inputs.decode.weights_stay = false;
      inputs.topology = make_topology(ShardStrategy::kFullShard, ranks, ranks);
      EXPECT_TRUE(
          draft_tier_plan(inputs, made_up_machine()).step.schedules.forward_again.ops.empty());
    }
  }
}

// Goal: the validator proves a pass without fetches from what the slots hold when it begins: not
// with an empty slot, nor with another unit in it.
TEST(DecodePlan, HasAPassWithoutFetchesThatIsProvedFromWhatSlotsHold) {
  const ModelSpec model = fakes::make_small_model(2, true);
  PassInputs slots = {.unit_bytes = {8, 8, 8, 8}, .slot_bytes = {8, 8, 8, 8}, .prefetch = 1};
  ScheduleInputs inputs;
  inputs.model = &model;
  inputs.pass = Pass::kForward;
  inputs.executions = plan_pass(model, Pass::kForward, slots);
  const std::vector<Placed> left = left_in_slots(inputs.executions);
  ASSERT_EQ(left.size(), 4U);
  slots.begin = inputs.begin = left;
  inputs.executions = plan_pass(model, Pass::kForward, slots);
  const StepSchedule again = build_schedule(inputs);
  EXPECT_FALSE(fetches(again));
  EXPECT_TRUE(validate_schedule(again, inputs).empty());
  inputs.begin.pop_back();
  EXPECT_FALSE(validate_schedule(again, inputs).empty());
  inputs.begin = left;
  std::swap(inputs.begin[1].unit, inputs.begin[2].unit);
  EXPECT_FALSE(validate_schedule(again, inputs).empty());
  inputs.begin = {};
  EXPECT_EQ(validate_schedule(again, inputs).size(), 5U);  // one for each leased unit
}

}  // namespace
}  // namespace longshore
