// Schedules by hand for tests of the validator: operations in short form, a schedule without
// activation checkpoints, and its findings after a change. Any thread.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offload/schedule/schedule_validator.h"
#include "tests/fakes/operations.h"
#include "tests/fakes/specs.h"

namespace longshore {

inline Placed at(int unit, int slot) {
  return {UnitId(unit), DeviceSlot(slot)};
}

// Places: the slot numbers of an operation beside its device slots.
struct Places {
  std::optional<int32_t> gradient = {}, input = {}, output = {}, host_slot = {}, staging = {},
                         state = {}, parameters = {};
};

// Names the slot of the unit's own input; the next unit's comes behind it.
inline void set_input(Op& op, InputSlot slot) {
  std::erase_if(op.accesses, [&](const Access& access) {
    return access.resource.memory == Memory::kInputSlot && !is_output(op, access);
  });
  op.accesses.insert(op.accesses.begin(), reads(slot, op.unit));
}

inline void set_output(Op& op, InputSlot slot) {
  std::erase_if(op.accesses, [&](const Access& access) { return is_output(op, access); });
  op.accesses.push_back(writes(slot, UnitId(op.unit.value + 1)));
}

inline void lease(Op& op, const std::vector<Placed>& slots) {
  fakes::drop_slot<DeviceSlot>(op);
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    op.accesses.insert(op.accesses.begin(), reads(slot->slot, slot->unit));
  }
}

// Makes an operation that names slots; declared() completes its accesses.
inline Op op(OpKind kind, int unit, const std::vector<Placed>& slots, std::vector<int32_t> after,
             const Places& places = {}) {
  Op op{.kind = kind, .unit = UnitId(unit), .after = std::move(after)};
  const auto name = [&op](auto slot) { op.accesses.push_back(reads(slot, op.unit)); };
  for (const Placed& placed : slots) op.accesses.push_back(reads(placed.slot, placed.unit));
  if (places.gradient) name(GradientBuffer(*places.gradient));
  if (places.host_slot) name(HostGradientSlot(*places.host_slot));
  if (places.input) name(InputSlot(*places.input));
  if (places.output) set_output(op, InputSlot(*places.output));
  if (places.state) name(StateSlot(*places.state));
  if (places.parameters) name(ParameterSlot(*places.parameters));
  if (places.staging) name(StagingSlot(*places.staging));
  return op;
}

// Returns whether an operation of the kind writes a slot that it names.
inline bool writes_slot(OpKind kind, Memory memory, const ScheduleInputs& plan) {
  using enum OpKind;
  using enum Memory;
  switch (kind) {
    case kFetch:
      return memory == kDeviceSlot || (memory == kParameterSlot && plan.frozen_in_files());
    case kUpdate:
      return memory == kStateSlot || memory == kParameterSlot;
    case kBackward:
      return memory == kGradientBuffer;
    case kLoadInput:
      return memory == kInputSlot;
    case kSaveInput:
      return memory == kStagingSlot;
    case kDrain:
      return memory == kHostGradientSlot;
    case kReadState:
    case kReadParameters:
    case kReadInput:
    case kGather:
    case kReduce:
      return true;
    default:
      return false;
  }
}

// Returns what an operation of the kind accesses of its unit's own memory. No unit owns a tied
// parameter.
inline std::vector<Access> own_accesses(OpKind kind, UnitId unit, const ScheduleInputs& plan) {
  using enum OpKind;
  using enum Memory;
  std::vector<Access> all;
  const auto add = [&](bool accesses, Memory memory, bool written) {
    if (accesses) all.push_back({Resource(memory, unit), unit, written});
  };
  const bool on_host = plan.parameter_slots == 0 || plan.frozen_in_files();
  const bool on_drives = kind == kReadState || kind == kWriteState || kind == kCommit ||
                         (kind == kReadParameters && !plan.frozen_in_files());
  add(on_drives, kDriveState, kind == kWriteState);
  const bool of_host = kind == kFetch || kind == kUpdate || kind == kWriteState || kind == kCommit;
  add(on_host && of_host, kHostParameters, kind == kUpdate);
  const bool of_gradient = kind == kDrain || (kind == kUpdate && plan.pass != Pass::kSweep);
  add(of_gradient && plan.gradient_ring == 0, kHostGradient, kind == kDrain);
  const bool of_input = kind == kSaveInput || kind == kLoadInput;
  add(of_input && plan.input_staging == 0, kHostCheckpoint, kind == kSaveInput);
  add(kind == kWriteInput || kind == kReadInput, kDriveCheckpoint, kind == kWriteInput);
  return all;
}

// Returns the schedule with all accesses that its operations must declare beside the named slots.
inline StepSchedule declared(StepSchedule schedule, const ScheduleInputs& plan) {
  for (Op& op : schedule.ops) {
    const bool commits = op.kind == OpKind::kCommit;
    for (Access& access : op.accesses) {
      access.writes = writes_slot(op.kind, access.resource.memory, plan) || is_output(op, access);
    }
    for (int32_t i = 0; commits && i < plan.state_slots; ++i) {
      op.accesses.insert(op.accesses.begin() + i, writes(StateSlot(i), UnitId()));
    }
    for (const UnitSpec& unit : plan.model->units) {
      if (!commits && unit.id != op.unit) continue;
      for (const Access& access : own_accesses(op.kind, unit.id, plan)) {
        op.accesses.push_back(access);
      }
    }
  }
  return schedule;
}

inline std::string text_of(const std::vector<ScheduleFinding>& findings) {
  std::string text;
  for (const ScheduleFinding& finding : findings) text += finding.text + "\n";
  return text;
}

// ByHand: operations without activation checkpoints, each with exactly the waits that it needs.
struct ByHand {
  ByHand() {
    model.units.resize(2);
    for (int u = 0; u < 2; ++u) {
      model.units[u].id = UnitId(u);
      model.units[u].name = "unit." + std::to_string(u);
      model.units[u].parameters = {fakes::make_parameter("p" + std::to_string(u), {8})};
    }
    model.units[0].carry_out = {{1}};
    inputs.model = &model;
    inputs.executions.executions = {{UnitId(0), {at(0, 0)}, {at(0, 0), at(1, 1)}},
                                    {UnitId(1), {at(1, 1)}, {}},
                                    {UnitId(0), {at(0, 0)}, {}}};
    inputs.gathers = true;
    inputs.reduces = true;
    inputs.gradient_buffers = 1;
    using enum OpKind;
    schedule.ops = {
        op(kUpdate, 0, {}, {}),            // 0
        op(kFetch, 0, {at(0, 0)}, {0}),    // 1
        op(kGather, 0, {at(0, 0)}, {1}),   // 2
        op(kUpdate, 1, {}, {}),            // 3
        op(kFetch, 1, {at(1, 1)}, {3}),    // 4
        op(kGather, 1, {at(1, 1)}, {4}),   // 5
        op(kForward, 0, {at(0, 0)}, {2}),  // 6
        op(kBackward, 1, {at(1, 1)}, {5}, {.gradient = 0}),
        op(kReduce, 1, {}, {7}, {.gradient = 0}),  // 8
        op(kDrain, 1, {}, {8}, {.gradient = 0}),   // 9
        op(kBackward, 0, {at(0, 0)}, {9}, {.gradient = 0}),
        op(kReduce, 0, {}, {10}, {.gradient = 0}),  // 11
        op(kDrain, 0, {}, {11}, {.gradient = 0}),   // 12
    };
  }

  StepSchedule declared() const { return longshore::declared(schedule, inputs); }
  std::string findings() const { return text_of(validate_schedule(declared(), inputs)); }
  // Returns the findings after a change.
  template <typename Change>
  std::string with(const Change& change) const {
    ByHand copy = *this;
    copy.inputs.model = &copy.model;
    change(copy);
    return copy.findings();
  }

  ModelSpec model;
  ScheduleInputs inputs;
  StepSchedule schedule;
};

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

}  // namespace longshore
