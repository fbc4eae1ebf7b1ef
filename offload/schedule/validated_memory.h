// validated_memory: the validator's model of memory and units, updated operation by operation.
// Plain values, internal to schedule_validator.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

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

inline std::string unit_text(UnitId unit) {
  return "unit " + std::to_string(unit.value);
}

// The progress of one unit so far.
struct UnitState {
  Memory host_parameters;
  Memory host_gradient;          // used without a ring
  Memory activation_checkpoint;  // on the host, used without staging
  Memory drive_input;            // on the drives
  Memory drive_state;            // on the drives, including its parameters
  SlotUse waiting;               // the gradient of a unit that owns_tied
  bool trainable = false;
  bool owns_tied = false;
  int32_t adders = 0;  // backward operations that still add to its gradient
  bool fetched = false, updated = false, state_written = false;
  bool reduced = false, drained = false;
  bool wrote_output = false;
  bool saved = false, written = false, read_back = false, loaded = false;  // its input run
};

}  // namespace longshore::validation
