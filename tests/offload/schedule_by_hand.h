// Schedules by hand for tests of the validator: operations in short form, a schedule without
// activation checkpoints, and its findings after a change. Any thread.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offload/schedule/schedule_validator.h"
#include "tests/fakes/specs.h"

namespace longshore {

inline Placed at(int unit, int slot) {
  return {UnitId(unit), DeviceSlot(slot)};
}

// Places: the slot numbers of an operation beside its parameter slots.
struct Places {
  std::optional<int32_t> gradient = {}, input = {}, output = {}, host_slot = {}, staging = {},
                         state = {}, parameters = {};
};

inline Op op(OpKind kind, int unit, std::vector<Placed> slots, std::vector<int32_t> after,
             const Places& places = {}) {
  Op op{.kind = kind, .unit = UnitId(unit), .slots = std::move(slots), .after = std::move(after)};
  if (places.gradient) op.gradient = GradientBuffer(*places.gradient);
  if (places.input) op.input = InputSlot(*places.input);
  if (places.output) op.output = InputSlot(*places.output);
  if (places.host_slot) op.host_slot = HostGradientSlot(*places.host_slot);
  if (places.staging) op.staging = StagingSlot(*places.staging);
  if (places.state) op.state = StateSlot(*places.state);
  if (places.parameters) op.parameters = ParameterSlot(*places.parameters);
  return op;
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

  std::string findings() const { return text_of(validate_schedule(schedule, inputs)); }
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
