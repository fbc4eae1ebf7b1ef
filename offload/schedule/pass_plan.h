// PassPlan: the order in which a pass needs units, and for every execution which units are fetched
// into which slots before it computes. A value: `plan_pass` makes it, and build_schedule makes a
// pass's operations of it. Pure functions, no device.
//
// The order is known before the first step, so the slot that gives way is always the one whose unit
// is needed last (Belady 1966), and backward uses what forward left.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "shard/unit_spec.h"

namespace longshore {

// A unit in a slot.
struct Placed {
  UnitId unit;
  int32_t slot = 0;
  bool operator==(const Placed&) const = default;
};

// One unit's turn to compute.
struct UnitExecution {
  UnitId unit;
  // The unit, then those that it borrows parameters from; none where it reads no parameters.
  std::vector<Placed> leases;
  std::vector<Placed> fetches;  // started before it computes: for itself, then for later executions
};

struct PassPlan {
  std::vector<UnitExecution> executions;
};

enum class Pass : uint8_t {
  kTrain,  // forward of all units but the last, then backward from the last to the first that needs
           // it
  kForward,  // all units in order
  kUpdates,  // no unit computes: pending updates are applied
  kSweep,    // no unit computes: every unit's state is loaded, restored or saved
  kCommit,   // no unit is touched: what earlier passes wrote is made durable
};

constexpr bool computes(Pass pass) {
  return pass == Pass::kTrain || pass == Pass::kForward;
}

struct PassInputs {
  std::vector<Bytes> unit_bytes;  // by unit: gathered
  std::vector<Bytes> slot_bytes;
  int64_t prefetch = 0;  // executions ahead
};

enum class Half : uint8_t { kForward, kBackward };

// Units that must be in slots at once to run `unit`: itself and those it borrows from, or none
// where backward does without.
std::vector<UnitId> units_leased_for(const UnitSpec& unit, Half half = Half::kForward);

// The units of a pass, in the order of their executions.
std::vector<UnitId> execution_order(const ModelSpec& model, Pass pass);

// Slots are empty at first. CheckFailure where the slots cannot hold what a execution leases.
PassPlan plan_pass(const ModelSpec& model, Pass pass, const PassInputs& inputs);

}  // namespace longshore
