// HostGradients: a rank's drained gradients in host memory until their updates, in one arena of the
// planned size. Owned by the engine; the D2H lane writes, the update lane reads.
//
// Each unit has its own slot. Where a unit is updated right after its drain, units instead use a
// ring of a few slots, each as large as the largest unit's gradient. The schedule assigns a ring
// slot to each drain, and the unit's update frees it.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "pinned/pinned_arena.h"
#include "shard/slots.h"
#include "shard/state_format.h"

namespace longshore {

struct HostGradientsOptions {
  DType dtype = DType::kBF16;  // drain dtype
  int32_t ring = 0;            // slots of the ring; 0: one slot for each unit
};

class HostGradients {
 public:
  // Allocates zeros. `pool` touches the pages and is not kept.
  HostGradients(const std::vector<FlatLayout>& layouts, const HostGradientsOptions& options,
                bool register_with_gpus, WorkerPool& pool);

  // Returns the value of host_bytes() before anything is allocated.
  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts,
                             const HostGradientsOptions& options);

  DType dtype() const { return options_.dtype; }
  Bytes host_bytes() const { return arena_.size_bytes(); }
  // Owners of ring slots: claimed before the unit's drain, freed after its update.
  SlotOwners<HostGradientSlot>& ring() { return ring_; }
  // Returns the rank's part of the unit's gradient, its trainable segments end to end. In a ring
  // the unit must own a slot.
  std::span<std::byte> gradient(UnitId unit);
  // Returns one segment of gradient(unit).
  std::span<std::byte> segment(UnitId unit, Segment segment);

 private:
  struct Unit {
    Bytes begin = 0;  // offset of its own slot in the arena; unused in a ring
    Bytes bytes = 0;
    std::array<ElementRange, 3> segments{};  // byte ranges inside the gradient
  };
  const Unit& at(UnitId unit) const;

  HostGradientsOptions options_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  SlotOwners<HostGradientSlot> ring_;
};

}  // namespace longshore
