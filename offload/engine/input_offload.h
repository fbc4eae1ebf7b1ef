// InputOffload: copies units' inputs to their tier after forward, and back before backward. Owned
// by the engine. save() is for the D2H lane, load() for the H2D lane, of different units at the
// same time.
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

  // Copies the unit's inputs of the first `micro_batches` micro-batches; with the staging slot that
  // they are put into or taken from where the tier has slots.
  void save(UnitId unit, std::optional<int32_t> staging, const CarryStore& carry,
            int32_t micro_batches);
  void load(UnitId unit, std::optional<int32_t> staging, CarryStore& carry, int32_t micro_batches);
  InputTier& tier() { return *tier_; }

 private:
  InputTier* tier_;
  CopyEngine* copies_;
};

}  // namespace longshore
