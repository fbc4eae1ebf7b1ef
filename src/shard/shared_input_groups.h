// SharedInputGroups: which units' inputs are kept from forward to backward as one. Tensors of the
// carry that pass through units unchanged are kept once, so those units' inputs form a run: they
// are in one place, saved once behind the last of their writers and loaded once before the last of
// their readers. Made from a model's spec; a value, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

// The inputs of units `first` to `last`. Whoever names a run names its first unit.
struct SharedInputGroup {
  int32_t number = 0;  // runs are numbered from 1 in the order of units: u where nothing passes
  UnitId first, last;
  bool operator==(const SharedInputGroup&) const = default;
};

class SharedInputGroups {
 public:
  explicit SharedInputGroups(const ModelSpec& model);

  const std::vector<SharedInputGroup>& all() const& { return runs_; }
  // The run that the unit's input is in; null where nothing of it is kept.
  const SharedInputGroup* of(UnitId unit) const;
  // Whether it is the unit that the run is named after.
  bool names(UnitId unit) const { return of(unit) != nullptr && of(unit)->first == unit; }

 private:
  std::vector<SharedInputGroup> runs_;
  std::vector<int32_t> of_unit_;  // index into the runs; -1: none
};

// Whether a tensor has a place of its own in a run.
bool is_kept(const CarryTensorSpec& tensor);

// What a run takes for each position.
Bytes kept_bytes_per_position(const ModelSpec& model, const SharedInputGroup& run, DType compute);

}  // namespace longshore
