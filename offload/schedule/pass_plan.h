// PassPlan: the order of unit executions in a pass, and for each the units that are fetched into
// slots before it computes. A value: `plan_pass` makes it, and build_schedule makes the pass's
// operations from it. Pure functions, no device.
//
// The order is known before the first step, so the unit that is evicted is always the one that is
// needed last (Belady 1966), and backward reuses the units that forward left in slots.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "shard/slots.h"
#include "shard/unit_spec.h"

namespace longshore {

// A unit and the slot that it is in.
struct Placed {
  UnitId unit;
  DeviceSlot slot;
  bool operator==(const Placed&) const = default;
};

// One execution of a unit's compute.
struct UnitExecution {
  UnitId unit;
  // The unit itself, then the owners of its tied parameters. Empty if it reads no parameters.
  std::vector<Placed> leases;
  std::vector<Placed> fetches;  // issued before it computes, also for later executions
};

struct PassPlan {
  std::vector<UnitExecution> executions;
};

enum class Pass : uint8_t {
  kTrain,    // forward of all units but the last, then backward from the last to the first needed
  kForward,  // all units in order
  kUpdates,  // no unit computes: pending updates are applied
  kSweep,    // no unit computes: every unit's state is loaded, restored or saved
  kCommit,   // no unit runs: state that earlier passes wrote is made durable
};

constexpr bool computes(Pass pass) {
  return pass == Pass::kTrain || pass == Pass::kForward;
}

struct PassInputs {
  std::vector<Bytes> unit_bytes;  // by unit: all of its parameters, gathered
  std::vector<Bytes> slot_bytes;
  int64_t prefetch = 0;  // number of executions to fetch ahead
  // The units that are in slots when the pass begins, whole and of the pass's version.
  std::vector<Placed> begin = {};
};

enum class Half : uint8_t { kForward, kBackward };

// Returns the units that must be in slots at the same time to run `unit`: itself and the owners of
// its tied parameters. Empty for a backward that reads no parameters.
std::vector<UnitId> units_leased_for(const UnitSpec& unit, Half half = Half::kForward);

// Returns the units of a pass in the order of their executions.
std::vector<UnitId> execution_order(const ModelSpec& model, Pass pass);

// Plans a pass. Throws CheckFailure where an execution leases more than the slots can hold.
PassPlan plan_pass(const ModelSpec& model, Pass pass, const PassInputs& inputs);

// Returns the units that a pass which began with empty slots leaves in them, by slot.
std::vector<Placed> left_in_slots(const PassPlan& plan);

}  // namespace longshore
