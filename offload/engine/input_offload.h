// InputOffload: copies units' inputs to their tier after forward and back before backward. Owned by
// the engine; the D2H lane calls save() and the H2D lane load(), concurrently for different units.
#pragma once

#include <optional>

#include "device/copy_engine.h"
#include "offload/engine/carry_store.h"
#include "shard/input_tier.h"

namespace longshore {

class InputOffload {
 public:
  // Both must outlive this.
  InputOffload(InputTier* tier, CopyEngine* copies) : tier_(tier), copies_(copies) {}

  // Copies the unit's inputs of the first `micro_batches` micro-batches. `staging` is the tier's
  // slot that they pass through; empty for a tier without slots.
  void save(UnitId unit, std::optional<int32_t> staging, const CarryStore& carry,
            int32_t micro_batches);
  void load(UnitId unit, std::optional<int32_t> staging, CarryStore& carry, int32_t micro_batches);
  InputTier& tier() { return *tier_; }

 private:
  InputTier* tier_;
  CopyEngine* copies_;
};

}  // namespace longshore
