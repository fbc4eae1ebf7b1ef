// InputTier: the tier that keeps activation checkpoints on the host between forward and backward.
// The engine's InputOffload owns it and copies between these bytes and the device's.
//
// In host memory each unit has its own bytes. On drives, checkpoints pass through numbered staging
// slots: write() empties a slot and read() fills one, and each blocks its thread until it is done.
// The schedule decides which slot is used when; several operations may run at once, each with its
// own slot and unit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "shard/durability.h"
#include "shard/slots.h"
#include "shard/unit_spec.h"

namespace longshore {

// One slot is filled or emptied while the transfer of the other is in flight.
inline constexpr int32_t kInputStagingSlots = 2;

class InputTier {
 public:
  virtual ~InputTier() = default;
  // Returns the bytes that the tier owns on the host; equal to the plan.
  virtual Bytes host_bytes() const = 0;
  // Returns the host buffers of the unit's checkpoint by micro-batch: in `slot`, if it is given.
  virtual std::vector<std::span<std::byte>> places(UnitId unit,
                                                   std::optional<StagingSlot> slot) const = 0;

  // ---- For tiers with slots; others throw CheckFailure. Both move the first `micro_batches`
  // micro-batches. write() throws IoError.
  virtual void write(UnitId unit, StagingSlot slot, int32_t micro_batches);
  // Throws CorruptStateError if the bytes read differ from the bytes written.
  virtual void read(UnitId unit, StagingSlot slot, int32_t micro_batches);
  // Returns the bytes moved since the start.
  virtual DriveTraffic traffic() const { return {}; }
};

// SharedInputGroups: units whose activation checkpoints are kept together. A carry tensor that
// passes through units unchanged is kept once, so these units' inputs form one group: one buffer,
// saved once after its last writer and loaded once before its first reader in backward. Resident
// tensors belong to no group. Made from a model's spec; a value, any thread.

// The inputs of units `first` to `last`. The first unit identifies the group.
struct SharedInputGroup {
  int32_t number = 0;  // counts from 1 in unit order: equals the unit's id if nothing passes
  UnitId first, last;
  // The units keep these of their results (UnitSpec::results) behind the inputs, so a group with
  // any is complete only after forward of its last unit.
  KeptResults results = KeptResults::kNone;
  bool keeps_results() const { return results != KeptResults::kNone; }
  // Returns whether the group keeps a result of its units.
  bool keeps(const CarryTensorSpec& result) const { return result.kept_from <= results; }
  // Returns its input slot: groups use `slots` slots in rotation, in forward and in backward.
  InputSlot slot(int32_t slots) const { return InputSlot(number % slots); }
  bool operator==(const SharedInputGroup&) const = default;
};

class SharedInputGroups {
 public:
  // The groups that backward reads keep these results of their units too.
  explicit SharedInputGroups(const ModelSpec& model, KeptResults keep = KeptResults::kNone);

  const std::vector<SharedInputGroup>& all() const& { return runs_; }
  // Returns the group of the unit's input; null if nothing of it is kept.
  const SharedInputGroup* of(UnitId unit) const;
  // Returns whether the unit is the first of its group, which identifies it.
  bool names(UnitId unit) const { return of(unit) != nullptr && of(unit)->first == unit; }

 private:
  std::vector<SharedInputGroup> runs_;
  std::vector<int32_t> of_unit_;  // index into runs_; -1: none
};

// Each result begins at a multiple of these bytes per position.
inline constexpr Bytes kResultAlignment = 16;

// Returns a group's bytes per position, and those without results.
Bytes kept_bytes_per_position(const ModelSpec& model, const SharedInputGroup& run, DType compute);
Bytes input_bytes_per_position(const ModelSpec& model, const SharedInputGroup& run, DType compute);

// Returns the bytes per position of all resident tensors, each counted where it begins.
Bytes resident_bytes_per_position(const ModelSpec& model, DType compute);

}  // namespace longshore
