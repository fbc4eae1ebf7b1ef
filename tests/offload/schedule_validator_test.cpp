// The findings of the validator, on schedules by hand in which every wait is needed.
#include "offload/schedule/schedule_validator.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "base/errors.h"
#include "offload/schedule/step_schedule.h"
#include "tests/fakes/specs.h"
#include "tests/offload/schedule_by_hand.h"

namespace longshore {
namespace {

using fakes::drop_slot;
using fakes::set_slot;

// Goal: the order follows lanes and `after`, through any number of operations.
TEST(HappensBefore, FollowsLanesAndWaits) {
  const ByHand hand;
  const HappensBefore before(hand.schedule);
  EXPECT_TRUE(before.ordered(0, 1));   // a wait
  EXPECT_TRUE(before.ordered(0, 3));   // a lane
  EXPECT_TRUE(before.ordered(0, 12));  // a wait and a lane
  EXPECT_FALSE(before.ordered(3, 1));  // issued later
  EXPECT_FALSE(before.ordered(3, 6));  // unit 1's update and unit 0's forward are unordered
  EXPECT_FALSE(before.ordered(6, 4));
  EXPECT_FALSE(before.ordered(5, 5));
}

// A valid schedule has no findings.
TEST(ScheduleValidator, AcceptsAScheduleByHand) {
  const ByHand hand;
  EXPECT_EQ(hand.findings(), "");
  EXPECT_NO_THROW(check_step_schedule(hand.declared(), hand.inputs));
}

// Goal: a finding names both operations, and one error holds all findings.
TEST(ScheduleValidator, NamesBothSidesOfARace) {
  ByHand hand;
  hand.schedule.ops[7].after.clear();
  const auto findings = validate_schedule(hand.declared(), hand.inputs);
  // The second finding: the offload may overwrite the old gradient before the update reads it.
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].op, 7);
  EXPECT_EQ(findings[0].text,
            "op 7 backward unit 1 slot 1 gradient 0: slot 1 may still be written by op 5 gather "
            "unit 1 slot 1");
  try {
    check_step_schedule(hand.declared(), hand.inputs);
    FAIL() << "no error";
  } catch (const CheckFailure& error) {
    expect_contains(error.what(), "2 findings\n  op 7 backward unit 1 slot 1 gradient 0: slot 1");
  }
}

// Goal: the removal of any wait of this schedule is detected.
TEST(ScheduleValidator, CatchesEveryMissingWaitOfAScheduleByHand) {
  const ByHand hand;
  for (size_t i = 0; i < hand.schedule.ops.size(); ++i) {
    if (hand.schedule.ops[i].after.empty()) continue;
    EXPECT_NE(hand.with([&](ByHand& copy) { copy.schedule.ops[i].after.clear(); }), "") << i;
  }
}

// Waits for operations that are later or do not exist are detected.
TEST(ScheduleValidator, CatchesWaitsThatAreNone) {
  const ByHand hand;
  const auto waits = [&](int32_t op, int32_t before) {
    return hand.with([&](ByHand& copy) { copy.schedule.ops[op].after.push_back(before); });
  };
  expect_contains(waits(2, 2), "waits for op 2, which is not issued before it");
  expect_contains(waits(2, 9), "waits for op 9, which is not issued before it");
  expect_contains(waits(2, -1), "waits for op -1, which is not issued before it");
  expect_contains(waits(3, 0), "waits for op 0 update unit 0 of its own lane");
}

// Wrong slots and buffers are detected.
TEST(ScheduleValidator, CatchesWrongPlaces) {
  const ByHand hand;
  const auto changed = [&](int32_t op, const std::function<void(Op&)>& change) {
    return hand.with([&](ByHand& copy) { change(copy.schedule.ops[op]); });
  };
  expect_contains(changed(4, [](Op& op) { lease(op, {at(1, 0)}); }),
                  "slot 0 loses unit 0, which no operation used");
  expect_contains(changed(4, [](Op& op) { lease(op, {at(1, 2)}); }), "the plan has no slot 2");
  expect_contains(changed(4, [](Op& op) { lease(op, {}); }), "must name one slot");
  expect_contains(changed(6, [](Op& op) { lease(op, {at(0, 1)}); }), "slot 1 holds unit 1, not");
  expect_contains(changed(6, [](Op& op) { lease(op, {}); }), "leases other units");
  expect_contains(changed(7, [](Op& op) { set_slot(op, GradientBuffer(1)); }),
                  "the plan has no gradient buffer 1");
  expect_contains(changed(7, [](Op& op) { drop_slot<GradientBuffer>(op); }),
                  "names no gradient buffer");
  expect_contains(changed(1, [](Op& op) { set_slot(op, GradientBuffer(0)); }),
                  "uses no gradient buffer");
  expect_contains(changed(6, [](Op& op) { set_output(op, InputSlot(0)); }), "has no output slot");
  expect_contains(changed(6, [](Op& op) { op.unit = UnitId(7); }), "there is no such unit");
}

// Missing operations are detected.
TEST(ScheduleValidator, CatchesWhatIsLeftOut) {
  const ByHand hand;
  const auto without = [&](int32_t op) {
    return hand.with([&](ByHand& copy) {
      StepSchedule cut;
      for (int32_t i = 0; i < static_cast<int32_t>(copy.schedule.ops.size()); ++i) {
        if (i == op) continue;
        Op kept = copy.schedule.ops[static_cast<size_t>(i)];
        std::erase(kept.after, op);
        for (int32_t& before : kept.after) before -= before > op ? 1 : 0;
        cut.ops.push_back(kept);
      }
      copy.schedule = cut;
    });
  };
  expect_contains(without(0), "the unit is fetched before its update");
  expect_contains(without(1), "slot 0 is empty, not unit 0");
  expect_contains(without(2), "slot 0 is not gathered");
  expect_contains(without(6), "comes instead of forward unit 0");
  expect_contains(without(8), "the gradient is not reduced");
  expect_contains(without(9), "gradient buffer 0 loses unit 1, which no operation used");
  expect_contains(without(10), "the pass ends after 2 of 3 executions");
  expect_contains(without(12), "the gradient of unit 0 is never drained");
}

// Operations that are done twice are detected.
TEST(ScheduleValidator, CatchesWhatIsDoneTwice) {
  const ByHand hand;
  const auto again = [&](int32_t op) {
    return hand.with([&](ByHand& copy) {
      copy.schedule.ops.push_back(copy.schedule.ops[static_cast<size_t>(op)]);
    });
  };
  expect_contains(again(12), "the gradient is drained twice");
  expect_contains(again(11), "the gradient is reduced twice");
  expect_contains(again(10), "comes after the last execution");
  expect_contains(again(3), "the unit is updated twice");
  expect_contains(again(2), "slot 0 is gathered already");
}

// Updates must follow the rule of optimizer.overlap.
TEST(ScheduleValidator, ChecksTheRuleOfUpdates) {
  const ByHand hand;
  const auto overlap = [&](UpdateOverlap rule) {
    return hand.with([&](ByHand& copy) { copy.inputs.overlap = rule; });
  };
  expect_contains(overlap(UpdateOverlap::kNone), "this pass has no updates");
  expect_contains(overlap(UpdateOverlap::kBackward),
                  "the unit's gradient is not in host memory yet");
  // With updates in backward, an update comes after its gradient's offload and after every fetch.
  const auto moved = [&](std::vector<int32_t> after) {
    return hand.with([&](ByHand& copy) {
      copy.inputs.overlap = UpdateOverlap::kBackward;
      copy.schedule.ops[0].kind = copy.schedule.ops[3].kind = OpKind::kFetch;
      auto& ops = copy.schedule.ops;
      ops = {ops[1], ops[2], ops[4],  ops[5],  ops[6], ops[7],
             ops[8], ops[9], ops[10], ops[11], ops[12]};
      for (Op& op : ops) op.after.clear();
      const std::vector<std::vector<int32_t>> waits = {{},  {0}, {},  {2}, {1}, {3},
                                                       {5}, {6}, {7}, {8}, {9}};
      for (size_t i = 0; i < ops.size(); ++i) ops[i].after = waits[i];
      ops.push_back(op(OpKind::kUpdate, 1, {}, {7}));
      ops.push_back(op(OpKind::kUpdate, 0, {}, std::move(after)));
    });
  };
  EXPECT_EQ(moved({10}), "");
  expect_contains(moved({}),
                  "the gradient of unit 0 in host memory may still be written by op 10 drain");
}

// ---- Gradients in host memory ----

// RingAtHome: updates in backward; both gradients use the one host gradient slot in rotation.
struct RingAtHome : ByHand {
  RingAtHome() {
    inputs.overlap = UpdateOverlap::kBackward;
    inputs.gradient_ring = 1;
    using enum OpKind;
    schedule.ops = {
        op(kFetch, 0, {at(0, 0)}, {}),
        op(kGather, 0, {at(0, 0)}, {0}),
        op(kFetch, 1, {at(1, 1)}, {}),
        op(kGather, 1, {at(1, 1)}, {2}),
        op(kForward, 0, {at(0, 0)}, {1}),
        op(kBackward, 1, {at(1, 1)}, {3}, {.gradient = 0}),
        op(kReduce, 1, {}, {5}, {.gradient = 0}),
        op(kDrain, 1, {}, {6}, {.gradient = 0, .host_slot = 0}),
        op(kUpdate, 1, {}, {7}, {.host_slot = 0}),  // 8
        op(kBackward, 0, {at(0, 0)}, {7}, {.gradient = 0}),
        op(kReduce, 0, {}, {9}, {.gradient = 0}),
        op(kDrain, 0, {}, {8, 10}, {.gradient = 0, .host_slot = 0}),
        op(kUpdate, 0, {}, {11}, {.host_slot = 0}),  // 12
    };
  }
};

// Gradients are followed through the ring in host memory.
TEST(ScheduleValidator, FollowsGradientsThroughTheRingAtHome) {
  const RingAtHome hand;
  EXPECT_EQ(hand.findings(), "");
  const auto changed = [&](int32_t op, const std::function<void(Op&)>& change) {
    return hand.with([&](ByHand& copy) { change(copy.schedule.ops[op]); });
  };
  expect_contains(
      changed(11, [](Op& op) { op.after = {10}; }),
      "op 11 drain unit 0 gradient 0 host slot 0: host gradient slot 0 may still be read by op 8 "
      "update unit 1 host slot 0");
  expect_contains(changed(12, [](Op& op) { op.after = {}; }),
                  "host gradient slot 0 may still be written by op 11 drain unit 0");
  expect_contains(changed(8, [](Op& op) { set_slot(op, HostGradientSlot(1)); }),
                  "the plan has no host gradient slot 1");
  expect_contains(changed(8, [](Op& op) { drop_slot<HostGradientSlot>(op); }),
                  "names no host gradient slot");
  expect_contains(changed(11, [](Op& op) { drop_slot<HostGradientSlot>(op); }),
                  "names no host gradient slot");
  expect_contains(changed(10, [](Op& op) { set_slot(op, HostGradientSlot(0)); }),
                  "uses no host gradient slot");
  expect_contains(changed(8, [](Op& op) { op.unit = UnitId(0); }),
                  "host gradient slot 0 holds unit 1, not unit 0");
  expect_contains(hand.with([](ByHand& copy) { copy.inputs.gradient_ring = 0; }),
                  "uses no host gradient slot");
  // The gradient that the slot held was never used by an update.
  expect_contains(hand.with([](ByHand& copy) {
    copy.inputs.gradient_ring = 2;
    set_slot(copy.schedule.ops[8], HostGradientSlot(1));
  }),
                  "op 11 drain unit 0 gradient 0 host slot 0: host gradient slot 0 loses unit 1");
}

// ---- Activation checkpoints ----

// KeptInputs: three units, two input slots; the input of unit 1 goes to the host and back.
struct KeptInputs : ByHand {
  KeptInputs() {
    model.units.push_back(model.units[1]);
    model.units[2].id = UnitId(2);
    model.units[2].name = "unit.2";
    model.units[2].parameters[0].name = "p2";
    model.units[1].carry_out = {{1}};
    inputs.gathers = inputs.reduces = false;
    inputs.overlap = UpdateOverlap::kNone;
    inputs.gradient_buffers = 3;
    inputs.input_slots = 2;
    inputs.executions.executions = {{UnitId(0), {at(0, 0)}, {at(0, 0), at(1, 1), at(2, 2)}}};
    using enum OpKind;
    schedule.ops = {
        op(kFetch, 0, {at(0, 0)}, {}),
        op(kFetch, 1, {at(1, 1)}, {}),
        op(kFetch, 2, {at(2, 2)}, {}),
        op(kForward, 0, {at(0, 0)}, {0}, {.output = 1}),
        op(kSaveInput, 1, {}, {3}, {.input = 1}),
        op(kForward, 1, {at(1, 1)}, {1}, {.input = 1, .output = 0}),
        op(kBackward, 2, {at(2, 2)}, {2}, {.gradient = 0, .input = 0}),
        op(kLoadInput, 1, {}, {4, 6}, {.input = 0}),
        op(kBackward, 1, {at(1, 1)}, {7}, {.gradient = 1, .input = 0}),
        op(kBackward, 0, {at(0, 0)}, {}, {.gradient = 2}),
        op(kDrain, 2, {}, {6}, {.gradient = 0}),
        op(kDrain, 1, {}, {8}, {.gradient = 1}),
        op(kDrain, 0, {}, {9}, {.gradient = 2}),
    };
  }
};

// Inputs are followed to the host and back.
TEST(ScheduleValidator, FollowsInputsToTheHostAndBack) {
  const KeptInputs hand;
  EXPECT_EQ(hand.findings(), "");
  const auto changed = [&](int32_t op, const std::function<void(Op&)>& change) {
    return hand.with([&](ByHand& copy) { change(copy.schedule.ops[op]); });
  };
  expect_contains(changed(4, [](Op& op) { op.after = {}; }),
                  "op 4 save input unit 1 input 1: input slot 1 may still be written by op 3");
  expect_contains(changed(7, [](Op& op) { op.after = {6}; }),
                  "the activation checkpoint of unit 1 on the host may still be written by op 4");
  expect_contains(changed(7, [](Op& op) { op.after = {4}; }),
                  "input slot 0 may still be read by op 6 backward unit 2");
  expect_contains(changed(8, [](Op& op) { op.after = {}; }),
                  "input slot 0 may still be written by op 7 load input");
  expect_contains(changed(8, [](Op& op) { set_input(op, InputSlot(1)); }),
                  "input slot 0 ends with unit 1");
  expect_contains(changed(3, [](Op& op) { set_output(op, InputSlot(0)); }),
                  "input slot 1 is empty, not unit 1");
  // The output takes the slot of an unfinished save.
  expect_contains(changed(5, [](Op& op) { set_output(op, InputSlot(1)); }),
                  "input slot 1 may still be read by op 4 save input unit 1 input 1");
  expect_contains(changed(4, [](Op& op) { op.unit = UnitId(2); }), "input slot 1 holds unit 1");
}

// ---- Activation checkpoints on drives ----

// InputsOnDrives: the input of unit 1 goes to the drives, that of unit 2 stays in the staging slot.
struct InputsOnDrives : ByHand {
  InputsOnDrives() {
    for (int u = 2; u < 5; ++u) {
      model.units.push_back(model.units[1]);
      model.units[u].id = UnitId(u);
      model.units[u].name = "unit." + std::to_string(u);
      model.units[u].parameters[0].name = "p" + std::to_string(u);
      model.units[u - 1].carry_out = {{1}};
    }
    inputs.gathers = inputs.reduces = false;
    inputs.overlap = UpdateOverlap::kNone;
    inputs.gradient_buffers = 5;
    inputs.input_slots = 2;
    inputs.input_staging = 1;
    inputs.executions.executions = {{UnitId(0), {at(0, 0)}, {}}};
    schedule.ops.clear();
    using enum OpKind;
    for (int u = 0; u < 5; ++u) {
      inputs.executions.executions[0].fetches.push_back(at(u, u));
      schedule.ops.push_back(op(kFetch, u, {at(u, u)}, {}));
    }
    const std::vector<Op> rest = {
        op(kForward, 0, {at(0, 0)}, {0}, {.output = 1}),              // 5
        op(kSaveInput, 1, {}, {5}, {.input = 1, .staging = 0}),       // 6
        op(kWriteInput, 1, {}, {6}, {.staging = 0}),                  // 7
        op(kForward, 1, {at(1, 1)}, {1}, {.input = 1, .output = 0}),  // 8
        op(kSaveInput, 2, {}, {7, 8}, {.input = 0, .staging = 0}),    // 9
        op(kForward, 2, {at(2, 2)}, {2, 6}, {.input = 0, .output = 1}),
        op(kForward, 3, {at(3, 3)}, {3, 9}, {.input = 1, .output = 0}),
        op(kBackward, 4, {at(4, 4)}, {4}, {.gradient = 0, .input = 0}),  // 12
        op(kLoadInput, 2, {}, {9, 12}, {.input = 0, .staging = 0}),      // 13
        op(kReadInput, 1, {}, {13}, {.staging = 0}),                     // 14
        op(kBackward, 3, {at(3, 3)}, {}, {.gradient = 1, .input = 1}),   // 15
        op(kLoadInput, 1, {}, {14, 15}, {.input = 1, .staging = 0}),     // 16
        op(kBackward, 2, {at(2, 2)}, {13}, {.gradient = 2, .input = 0}),
        op(kBackward, 1, {at(1, 1)}, {16}, {.gradient = 3, .input = 1}),
        op(kBackward, 0, {at(0, 0)}, {}, {.gradient = 4}),
        op(kDrain, 4, {}, {12}, {.gradient = 0}),
        op(kDrain, 3, {}, {15}, {.gradient = 1}),
        op(kDrain, 2, {}, {17}, {.gradient = 2}),
        op(kDrain, 1, {}, {18}, {.gradient = 3}),
        op(kDrain, 0, {}, {19}, {.gradient = 4}),
    };
    schedule.ops.insert(schedule.ops.end(), rest.begin(), rest.end());
  }
};

// Inputs are followed to the drives and back.
TEST(ScheduleValidator, FollowsInputsToTheDrivesAndBack) {
  const InputsOnDrives hand;
  EXPECT_EQ(hand.findings(), "");
  const auto changed = [&](int32_t op, const std::function<void(Op&)>& change) {
    return hand.with([&](ByHand& copy) { change(copy.schedule.ops[op]); });
  };
  expect_contains(changed(7, [](Op& op) { op.after = {}; }),
                  "staging slot 0 may still be written by op 6 save input unit 1");
  expect_contains(changed(9, [](Op& op) { op.after = {8}; }),
                  "staging slot 0 may still be read by op 7 write input unit 1");
  expect_contains(changed(14, [](Op& op) { op.after = {}; }),
                  "staging slot 0 may still be read by op 13 load input unit 2");
  expect_contains(changed(14, [](Op& op) { op.after = {}; }),
                  "the activation checkpoint of unit 1 on the drives may still be written by op 7");
  expect_contains(changed(16, [](Op& op) { op.after = {15}; }),
                  "staging slot 0 may still be written by op 14 read input unit 1");
  expect_contains(changed(7, [](Op& op) { op.unit = UnitId(2); }), "staging slot 0 holds unit 1");
  expect_contains(changed(14, [](Op& op) { op.unit = UnitId(2); }),
                  "the input is not on the drives");
  expect_contains(changed(14, [](Op& op) { drop_slot<StagingSlot>(op); }), "names no staging slot");
  expect_contains(changed(14, [](Op& op) { set_slot(op, StagingSlot(1)); }),
                  "the plan has no staging slot 1");
  expect_contains(changed(8, [](Op& op) { set_slot(op, StagingSlot(0)); }), "uses no staging slot");
  expect_contains(hand.with([](ByHand& copy) { copy.inputs.input_staging = 0; }),
                  "uses no staging slot");
  // A write without a later read is superfluous.
  expect_contains(changed(14,
                          [](Op& op) {
                            op.kind = OpKind::kWriteInput;
                            op.after = {13};
                          }),
                  "the input of unit 1 is written but never used");
}

// StateOnDrives: every kind of operation on drives, each with exactly the waits that it needs.
struct StateOnDrives : ByHand {
  StateOnDrives() {
    inputs.gathers = inputs.reduces = false;
    inputs.gradient_buffers = 2;
    inputs.state_slots = inputs.parameter_slots = 1;
    using enum OpKind;
    schedule.ops = {
        op(kReadState, 0, {}, {}, {.state = 0}),                    // 0
        op(kUpdate, 0, {}, {0}, {.state = 0, .parameters = 0}),     // 1
        op(kWriteState, 0, {}, {1}, {.state = 0}),                  // 2
        op(kFetch, 0, {at(0, 0)}, {1}, {.parameters = 0}),          // 3
        op(kReadState, 1, {}, {2}, {.state = 0}),                   // 4
        op(kUpdate, 1, {}, {3, 4}, {.state = 0, .parameters = 0}),  // 5
        op(kWriteState, 1, {}, {5}, {.state = 0}),                  // 6
        op(kFetch, 1, {at(1, 1)}, {5}, {.parameters = 0}),          // 7
        op(kForward, 0, {at(0, 0)}, {3}),                           // 8
        op(kBackward, 1, {at(1, 1)}, {7}, {.gradient = 0}),         // 9
        op(kReadParameters, 0, {}, {7}, {.parameters = 0}),         // 10
        op(kFetch, 0, {at(0, 0)}, {8, 10}, {.parameters = 0}),      // 11
        op(kBackward, 0, {at(0, 0)}, {11}, {.gradient = 1}),        // 12
        op(kDrain, 1, {}, {9}, {.gradient = 0}),
        op(kDrain, 0, {}, {12}, {.gradient = 1}),
    };
  }
};

// State and parameters are followed through their slots.
TEST(ScheduleValidator, FollowsStateAndParametersThroughTheirSlots) {
  const StateOnDrives hand;
  EXPECT_EQ(hand.findings(), "");
  const auto changed = [&](int32_t op, const std::function<void(Op&)>& change) {
    return hand.with([&](ByHand& copy) { change(copy.schedule.ops[op]); });
  };
  for (const int32_t op : {1, 2, 3, 4, 5, 6, 7, 10, 11}) {
    const std::vector<int32_t> after = hand.schedule.ops[static_cast<size_t>(op)].after;
    for (const int32_t wait : after) {
      EXPECT_NE(changed(op, [&](Op& one) { std::erase(one.after, wait); }), "")
          << describe_op(hand.schedule, op) << " without " << wait;
    }
  }
  expect_contains(changed(4, [](Op& op) { op.after = {}; }),
                  "state slot 0 may still be read by op 2 write state unit 0 state 0");
  expect_contains(changed(5, [](Op& op) { op.after = {4}; }),
                  "parameter slot 0 may still be read by op 3 fetch unit 0");
  // With a slot for each unit nothing else orders the write and the next read.
  const auto two_slots = [&](std::vector<int32_t> after) {
    return hand.with([&](ByHand& copy) {
      copy.inputs.state_slots = 2;
      for (const size_t op : {4, 5, 6}) set_slot(copy.schedule.ops[op], StateSlot(1));
      copy.schedule.ops[4].after = {};
      copy.schedule.ops[10].after = std::move(after);
    });
  };
  EXPECT_EQ(two_slots({2, 7}), "");
  expect_contains(two_slots({7}), "the state of unit 0 on the drives may still be written by op 2");
  expect_contains(changed(10, [](Op& op) { op.unit = UnitId(1); }),
                  "parameter slot 0 holds unit 1, not unit 0");
  expect_contains(changed(2, [](Op& op) { op.unit = UnitId(1); }), "state slot 0 holds unit 0");
  expect_contains(changed(5, [](Op& op) { drop_slot<ParameterSlot>(op); }),
                  "parameter slot 0 holds unit 0, not unit 1");
  expect_contains(changed(1, [](Op& op) { drop_slot<StateSlot>(op); }), "names no state slot");
  expect_contains(changed(0, [](Op& op) { set_slot(op, StateSlot(1)); }),
                  "the plan has no state slot 1");
  expect_contains(changed(8, [](Op& op) { set_slot(op, StateSlot(0)); }), "uses no state slot");
  expect_contains(changed(8, [](Op& op) { set_slot(op, ParameterSlot(0)); }),
                  "uses no parameter slot");
  expect_contains(hand.with([](ByHand& copy) { copy.inputs.parameter_slots = 0; }),
                  "the plan has no parameter slot 0");
  expect_contains(hand.with([](ByHand& copy) { copy.schedule.ops[6].kind = OpKind::kReadState; }),
                  "the updated state of unit 1 is never written");
  expect_contains(hand.with([](ByHand& copy) { copy.schedule.ops[2].kind = OpKind::kReadState; }),
                  "the parameters are not on the drives yet");
}

// FrozenInFiles: frozen parameters pass through a slot beside updates in host memory, each
// operation with exactly the waits that it needs. The second unit has no frozen parameter.
struct FrozenInFiles : ByHand {
  FrozenInFiles() {
    model.units[0].parameters.push_back(fakes::make_parameter("base", {8}));
    model.units[0].parameters.back().frozen = true;
    inputs.gathers = inputs.reduces = false;
    inputs.gradient_buffers = 2;
    inputs.parameter_slots = 1;
    using enum OpKind;
    schedule.ops = {
        op(kUpdate, 0, {}, {}),                                // 0
        op(kReadParameters, 0, {}, {}, {.parameters = 0}),     // 1
        op(kFetch, 0, {at(0, 0)}, {0, 1}, {.parameters = 0}),  // 2
        op(kUpdate, 1, {}, {}),                                // 3
        op(kFetch, 1, {at(1, 1)}, {3}),                        // 4
        op(kForward, 0, {at(0, 0)}, {2}),                      // 5
        op(kBackward, 1, {at(1, 1)}, {4}, {.gradient = 0}),    // 6
        op(kReadParameters, 0, {}, {2}, {.parameters = 0}),    // 7
        op(kFetch, 0, {at(0, 0)}, {5, 7}, {.parameters = 0}),  // 8
        op(kBackward, 0, {at(0, 0)}, {8}, {.gradient = 1}),    // 9
        op(kDrain, 1, {}, {6}, {.gradient = 0}),               // 10
        op(kDrain, 0, {}, {9}, {.gradient = 1}),               // 11
    };
  }
};

// A fetch needs the read and the update; nothing of a unit without frozen parameters is read.
TEST(ScheduleValidator, FollowsFrozenParametersOfFiles) {
  const FrozenInFiles hand;
  EXPECT_EQ(hand.findings(), "");
  const auto changed = [&](int32_t op, const std::function<void(Op&)>& change) {
    return hand.with([&](ByHand& copy) { change(copy.schedule.ops[op]); });
  };
  expect_contains(changed(2, [](Op& op) { op.after = {1}; }),
                  "the parameters of unit 0 in host memory may still be written by op 0 update");
  expect_contains(changed(2, [](Op& op) { op.after = {0}; }),
                  "parameter slot 0 may still be written by op 1 read parameters unit 0");
  expect_contains(changed(4, [](Op& op) { op.after = {}; }),
                  "the parameters of unit 1 in host memory may still be written by op 3 update");
  expect_contains(changed(7, [](Op& op) { op.after = {}; }),
                  "parameter slot 0 may still be written by op 2 fetch unit 0");
  expect_contains(changed(8, [](Op& op) { op.after = {5}; }),
                  "parameter slot 0 may still be written by op 7 read parameters unit 0");
  expect_contains(changed(2, [](Op& op) { drop_slot<ParameterSlot>(op); }),
                  "names no parameter slot");
  expect_contains(changed(4, [](Op& op) { set_slot(op, ParameterSlot(0)); }),
                  "the parameters are in host memory");
  expect_contains(changed(3, [](Op& op) { set_slot(op, ParameterSlot(0)); }),
                  "files are only read");
  expect_contains(changed(0, [](Op& op) { set_slot(op, StateSlot(0)); }),
                  "the state is in host memory");
  expect_contains(changed(1, [](Op& op) { op.unit = UnitId(1); }),
                  "the unit needs nothing from files");
}

// The state is committed once, after all writes.
TEST(ScheduleValidator, CommitsOnceWhenEverythingIsWritten) {
  StateOnDrives hand;
  hand.inputs.commits = true;
  expect_contains(hand.findings(), "the state is never committed");
  hand.schedule.ops.push_back(op(OpKind::kCommit, 0, {}, {6}));  // 15
  EXPECT_EQ(hand.findings(), "");
  EXPECT_EQ(describe_op(hand.schedule, 15), "op 15 commit");
  const auto changed = [&](const std::function<void(Op&)>& change) {
    return hand.with([&](ByHand& copy) { change(copy.schedule.ops.back()); });
  };
  const std::string early = changed([](Op& op) { op.after = {}; });
  expect_contains(early,
                  "the state of unit 1 on the drives may still be written by op 6 write state unit "
                  "1 state 0");
  expect_contains(early, "state slot 0 may still be");
  expect_contains(changed([](Op& op) { op.unit = UnitId(1); }), "is of no unit");
  expect_contains(changed([](Op& op) { set_slot(op, StateSlot(0)); }), "uses no state slot");
  const auto doubled = [&](OpKind kind) {
    return hand.with([&](ByHand& copy) {
      copy.schedule.ops.push_back(
          copy.schedule.ops[kind == OpKind::kCommit ? size_t{15} : size_t{6}]);
    });
  };
  expect_contains(doubled(OpKind::kCommit), "the state is committed twice");
  expect_contains(doubled(OpKind::kWriteState), "the state is written after the commit");
  expect_contains(hand.with([](ByHand& copy) { copy.schedule.ops[6].kind = OpKind::kReadState; }),
                  "the state of unit 1 on the drives is committed before it is written");
  expect_contains(hand.with([](ByHand& copy) { copy.inputs.commits = false; }),
                  "this pass commits nothing");
}

// Goal: a commit alone is a valid pass; a state sweep commits nothing, which is its caller's task.
TEST(ScheduleValidator, CommitsAlone) {
  const ModelSpec model = fakes::make_small_model(2, false);
  ScheduleInputs inputs;
  inputs.model = &model;
  inputs.pass = Pass::kCommit;
  inputs.state_slots = 1;
  inputs.commits = true;
  const StepSchedule alone = build_schedule(inputs);
  EXPECT_EQ(alone.ops.size(), 1U);
  EXPECT_EQ(text_of(validate_schedule(alone, inputs)), "");
  expect_contains(text_of(validate_schedule({}, inputs)), "the state is never committed");
  inputs.pass = Pass::kSweep;
  for (const Op& op : build_schedule(inputs).ops) EXPECT_NE(op.kind, OpKind::kCommit);
  expect_contains(text_of(validate_schedule(alone, inputs)), "this pass commits nothing");
}

// Goal: concurrent operations of a wide lane are unordered.
TEST(ScheduleValidator, OrdersOfAWideLaneEverySecondOperationOfAKindOnly) {
  StepSchedule schedule;
  for (int u = 0; u < 4; ++u) schedule.ops.push_back(op(OpKind::kReadInput, u, {}, {}));
  schedule.ops.push_back(op(OpKind::kLoadInput, 0, {}, {2}));
  const HappensBefore before(schedule);
  EXPECT_EQ(tracks_of(schedule), (std::vector<size_t>{4, 5, 4, 5, 7}));
  EXPECT_FALSE(before.ordered(0, 1));
  EXPECT_TRUE(before.ordered(0, 2));
  EXPECT_FALSE(before.ordered(1, 2));
  EXPECT_TRUE(before.ordered(1, 3));
  EXPECT_TRUE(before.ordered(0, 4));
  EXPECT_FALSE(before.ordered(1, 4));
  EXPECT_EQ(name_of_track(1), "read state 1");
  EXPECT_EQ(name_of_track(kTrackCount - 1), "commit");
  EXPECT_EQ(name_of_track(5), "read input 1");
  EXPECT_EQ(lane_of_track(5), Lane::kRead);
  EXPECT_EQ(lane_of_track(7), Lane::kH2D);
  EXPECT_EQ(name_of_track(7), "h2d");
  EXPECT_EQ(name_of_track(kTrackCount - 2), "write input 1");
}

}  // namespace
}  // namespace longshore
