// SharedInputGroups: units whose activation checkpoints are kept together. A carry tensor that
// passes through units unchanged is kept once, so these units' inputs form one group: one buffer,
// saved once after its last writer and loaded once before its first reader in backward. Made from a
// model's spec; a value, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

// The inputs of units `first` to `last`. The first unit identifies the group.
struct SharedInputGroup {
  int32_t number = 0;  // counts from 1 in unit order: equals the unit's id if nothing passes
  UnitId first, last;
  bool operator==(const SharedInputGroup&) const = default;
};

class SharedInputGroups {
 public:
  explicit SharedInputGroups(const ModelSpec& model);

  const std::vector<SharedInputGroup>& all() const& { return runs_; }
  // Returns the group of the unit's input; null if nothing of it is kept.
  const SharedInputGroup* of(UnitId unit) const;
  // Returns whether the unit is the first of its group, which identifies it.
  bool names(UnitId unit) const { return of(unit) != nullptr && of(unit)->first == unit; }

 private:
  std::vector<SharedInputGroup> runs_;
  std::vector<int32_t> of_unit_;  // index into runs_; -1: none
};

// Returns whether a tensor has its own bytes in a group.
bool is_kept(const CarryTensorSpec& tensor);

// Returns a group's bytes per position.
Bytes kept_bytes_per_position(const ModelSpec& model, const SharedInputGroup& run, DType compute);

}  // namespace longshore
