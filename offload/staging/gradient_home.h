// GradientHome: where a rank's drained gradients wait in host memory for their updates: one arena
// of the planned size. Owned by the engine; the D2H lane writes, the update lane reads. A unit's
// drain comes before its update because the schedule says so.
//
// Arena: [ gradient of unit 0 | gradient of unit 1 | ... ], each starting on a page.
#pragma once

#include <span>
#include <vector>

#include "pinned/pinned_arena.h"
#include "shard/state_format.h"

namespace longshore {

class GradientHome {
 public:
  // `dtype`: what gradients are drained in. All zeros. `pool` touches the pages and is not kept.
  GradientHome(const std::vector<FlatLayout>& layouts, DType dtype, bool register_with_gpus,
               WorkerPool& pool);

  // What host_bytes() will be.
  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts, DType dtype);

  DType dtype() const { return dtype_; }
  Bytes host_bytes() const { return arena_.size_bytes(); }
  // The rank's part of the unit's gradient: its trainable segments end to end.
  std::span<std::byte> gradient(UnitId unit);
  // One segment of it.
  std::span<std::byte> segment(UnitId unit, Segment segment);

 private:
  struct Unit {
    std::span<std::byte> place;
    std::array<ElementRange, 3> segments{};  // bytes of the gradient
  };
  const Unit& at(UnitId unit) const;

  DType dtype_;
  PinnedArena arena_;
  std::vector<Unit> units_;
};

}  // namespace longshore
