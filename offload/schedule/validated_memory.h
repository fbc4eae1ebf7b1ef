// validated_memory: the validator's model of memory and units, updated operation by operation.
// Plain values, internal to schedule_validator.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offload/schedule/step_schedule.h"
#include "shard/input_tier.h"

namespace longshore::validation {

// How findings name a piece of memory: `what`, its number, `where`.
struct MemoryText {
  std::string_view what;
  std::string_view where = "";
};
// By Memory.
inline constexpr std::array<MemoryText, kMemoryCount> kMemoryTexts = {{
    {"slot"},
    {"gradient buffer"},
    {"host gradient slot"},
    {"input slot"},
    {"state slot"},
    {"parameter slot"},
    {"staging slot"},
    {"the parameters of unit", " in host memory"},
    {"the gradient of unit", " in host memory"},
    {"the activation checkpoint of unit", " on the host"},
    {"the waiting gradient of unit"},
    {"the state of unit", " on the drives"},
    {"the activation checkpoint of unit", " on the drives"},
    {"the link"},
}};

inline std::string what_is(Memory memory) {
  return std::string(kMemoryTexts.at(static_cast<size_t>(memory)).what);
}
inline std::string name_of(const Resource& resource) {
  return what_is(resource.memory) + " " + std::to_string(resource.number) +
         std::string(kMemoryTexts.at(static_cast<size_t>(resource.memory)).where);
}

// One piece of memory, the operations that accessed it so far, and the unit whose data it holds.
struct Place {
  std::string name;
  int32_t writer = -1;                // the operation; -1: none
  std::vector<int32_t> readers = {};  // since it was written
  std::optional<UnitId> unit = {};
  bool complete = false;  // gathered, reduced
  bool used = false;      // an operation has consumed it
};

// All memory of the plan.
class Places {
 public:
  explicit Places(const ScheduleInputs& plan) {
    int32_t slots = 0;
    for (const Placed& placed : plan.begin) slots = std::max(slots, placed.slot.value + 1);
    for (const UnitExecution& execution : plan.executions.executions) {
      for (const Placed& placed : execution.fetches) slots = std::max(slots, placed.slot.value + 1);
    }
    make<DeviceSlot>(slots);
    make<GradientBuffer>(plan.gradient_buffers);
    make<InputSlot>(plan.input_slots);
    make<StagingSlot>(plan.input_staging);
    make<StateSlot>(plan.state_slots);
    make<ParameterSlot>(plan.parameter_slots);
    make<HostGradientSlot>(plan.gradient_ring);
    for (const Placed& placed : plan.begin) {
      Place& slot = of(Memory::kDeviceSlot).at(static_cast<size_t>(placed.slot.value));
      slot.unit = placed.unit;
      slot.complete = slot.used = true;
    }
    for (const UnitSpec& unit : plan.model->units) {
      for (size_t memory = 0; memory < kMemoryCount; ++memory) {
        const Resource own(static_cast<Memory>(memory), unit.id);
        if (is_slot(own.memory)) continue;
        places_[memory].push_back({.name = name_of(own), .unit = unit.id, .used = true});
      }
    }
  }

  // Returns null where the plan has no such memory.
  Place* find(const Resource& resource) {
    std::vector<Place>& places = of(resource.memory);
    const bool known = resource.number >= 0 && resource.number < std::ssize(places);
    return known ? &places[static_cast<size_t>(resource.number)] : nullptr;
  }
  std::vector<Place>& of(Memory memory) { return places_.at(static_cast<size_t>(memory)); }

 private:
  template <typename Slot>
  void make(int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      of(kMemoryOf<Slot>).push_back({.name = name_of(Resource(Slot(i)))});
    }
  }

  std::array<std::vector<Place>, kMemoryCount> places_;
};

inline SharedInputGroups runs_of(const ScheduleInputs& plan) {
  return SharedInputGroups(*plan.model, plan.keep_results);
}

// Returns the unit whose forward is the last to write a part of the run.
inline UnitId last_writer(const SharedInputGroup& run) {
  return UnitId(run.last.value - (run.keeps_results() ? 0 : 1));
}

inline std::string unit_text(UnitId unit) {
  return "unit " + std::to_string(unit.value);
}

// Returns whether the backward of `unit` adds to the gradient of `owner` (tied parameters).
inline bool adds_to(const ModelSpec& model, const UnitSpec& unit, UnitId owner) {
  return std::ranges::any_of(
      unit.tied, [&](ParamRef ref) { return ref.unit == owner && !model.parameter(ref).frozen; });
}

// The progress of one unit.
struct UnitState {
  bool trainable = false;  // some of its parameters are
  bool in_files = false;   // fetches read a part of it from files
  bool owns_tied = false;
  int32_t adders = 0;                        // backward operations that still add to its gradient
  std::array<bool, kOpKindCount> done = {};  // by kind; units that share an input use the first's

  bool did(OpKind kind) const { return done.at(static_cast<size_t>(kind)); }
};

}  // namespace longshore::validation
