// HostGradients: where a rank's drained gradients wait in host memory for their updates: one arena
// of the planned size. Owned by the engine; the D2H lane writes, the update lane reads.
//
// Each unit has a place of its own; or, where a unit is updated as soon as its gradient is in host
// memory, units take turns in a ring of a few places, each as large as the largest unit's gradient.
// The schedule gives a drain its place, and the update that frees it.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "pinned/pinned_arena.h"
#include "shard/slot_owners.h"
#include "shard/state_format.h"

namespace longshore {

struct HostGradientsOptions {
  DType dtype = DType::kBF16;  // what gradients are drained in
  int32_t ring = 0;            // places of the ring; 0: one for each unit
};

class HostGradients {
 public:
  // All zeros. `pool` touches the pages and is not kept.
  HostGradients(const std::vector<FlatLayout>& layouts, const HostGradientsOptions& options,
                bool register_with_gpus, WorkerPool& pool);

  // What host_bytes() will be.
  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts,
                             const HostGradientsOptions& options);

  DType dtype() const { return options_.dtype; }
  Bytes host_bytes() const { return arena_.size_bytes(); }
  // Of the ring: claimed before the unit's drain, free again after its update.
  SlotOwners& ring() { return ring_; }
  // The rank's part of the unit's gradient: its trainable segments end to end. In a ring the unit
  // must have a place.
  std::span<std::byte> gradient(UnitId unit);
  // One segment of it.
  std::span<std::byte> segment(UnitId unit, Segment segment);

 private:
  struct Unit {
    Bytes begin = 0;  // of its own place in the arena; in a ring: not used
    Bytes bytes = 0;
    std::array<ElementRange, 3> segments{};  // bytes of the gradient
  };
  const Unit& at(UnitId unit) const;

  HostGradientsOptions options_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  SlotOwners ring_;
};

}  // namespace longshore
