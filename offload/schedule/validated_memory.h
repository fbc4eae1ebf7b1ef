// validated_memory: the validator's model of memory and units, updated operation by operation.
// Plain values, internal to schedule_validator.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/schedule/step_schedule.h"
#include "shard/input_tier.h"

namespace longshore::validation {

// One piece of memory and the operations that accessed it so far.
struct Memory {
  std::string name;
  int32_t writer = -1;           // the operation; -1: none
  std::vector<int32_t> readers;  // since it was written
};

// A slot and the unit whose data it holds now.
struct SlotUse {
  Memory memory;
  std::optional<UnitId> unit;
  bool complete = false;  // gathered, reduced
  bool used = false;      // an operation has consumed it
};

inline void make_places(std::vector<SlotUse>& places, int32_t count, const std::string& name) {
  places.resize(static_cast<size_t>(count > 0 ? count : 0));
  for (size_t i = 0; i < places.size(); ++i) places[i].memory.name = name + std::to_string(i);
}

// All slots and buffers of the plan.
struct PlannedSlots {
  explicit PlannedSlots(const ScheduleInputs& plan) {
    int32_t slots = 0;
    for (const UnitExecution& execution : plan.executions.executions) {
      for (const Placed& placed : execution.fetches) slots = std::max(slots, placed.slot.value + 1);
    }
    make_places(device, slots, "slot ");
    make_places(gradients, plan.gradient_buffers, "gradient buffer ");
    make_places(inputs, plan.input_slots, "input slot ");
    make_places(staging, plan.input_staging, "staging slot ");
    make_places(states, plan.state_slots, "state slot ");
    make_places(parameters, plan.parameter_slots, "parameter slot ");
    make_places(host_gradients, plan.gradient_ring, "host gradient slot ");
  }

  SlotVector<DeviceSlot, SlotUse> device;
  SlotVector<GradientBuffer, SlotUse> gradients;
  SlotVector<InputSlot, SlotUse> inputs;
  SlotVector<StagingSlot, SlotUse> staging;
  SlotVector<StateSlot, SlotUse> states;
  SlotVector<ParameterSlot, SlotUse> parameters;
  SlotVector<HostGradientSlot, SlotUse> host_gradients;
};

inline SharedInputGroups runs_of(const ScheduleInputs& plan) {
  return SharedInputGroups(*plan.model, plan.keep_results);
}

// Returns the unit whose forward is the last to write a part of the run.
inline UnitId last_writer(const SharedInputGroup& run) {
  return UnitId(run.last.value - (run.results ? 0 : 1));
}

// Returns whether the operation puts its unit's results into its input slot.
inline bool writes_results(const SharedInputGroup& run, const Op& op, Pass pass) {
  return run.results && op.kind == OpKind::kForward && pass == Pass::kTrain;
}

inline std::string unit_text(UnitId unit) {
  return "unit " + std::to_string(unit.value);
}

// Returns whether the backward of `unit` adds to the gradient of `owner` (tied parameters).
inline bool adds_to(const ModelSpec& model, const UnitSpec& unit, UnitId owner) {
  return std::ranges::any_of(
      unit.tied, [&](ParamRef ref) { return ref.unit == owner && !model.parameter(ref).frozen; });
}

// The progress of one unit so far.
struct UnitState {
  Memory host_parameters;
  Memory host_gradient;          // used without a ring
  Memory activation_checkpoint;  // on the host, used without staging
  Memory drive_input;            // on the drives
  Memory drive_state;            // on the drives, including its parameters
  SlotUse waiting;               // the gradient of a unit that owns_tied
  bool trainable = false;        // some of its parameters are
  bool in_files = false;         // fetches read a part of it from files
  bool owns_tied = false;
  int32_t adders = 0;  // backward operations that still add to its gradient
  bool fetched = false, updated = false, state_written = false;
  bool reduced = false, drained = false;
  bool wrote_output = false;
  bool saved = false, written = false, read_back = false, loaded = false;  // its input run
};

}  // namespace longshore::validation
