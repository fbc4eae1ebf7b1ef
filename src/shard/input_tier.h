// InputTier: where units' inputs are on the host between a step's forward and backward. Owned by
// the engine's InputOffload, which copies between these bytes and the device's.
//
// In host memory each unit has bytes of its own. Elsewhere inputs pass through numbered staging
// slots, and operations of the schedule move them: write() empties a slot, read() fills one, each
// blocks its thread until that is done. Which slot, and when, is the schedule's decision; several
// operations may run at once, each with a slot and a unit of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "shard/drive_traffic.h"

namespace longshore {

// One is filled or emptied while the other is under way.
inline constexpr int32_t kInputStagingSlots = 2;

class InputTier {
 public:
  virtual ~InputTier() = default;
  // Bytes that the tier owns on the host; equal to the plan.
  virtual Bytes host_bytes() const = 0;
  // Where the unit's inputs lie, by micro-batch: in the slot, where the tier has slots.
  virtual std::vector<std::span<std::byte>> places(UnitId unit,
                                                   std::optional<int32_t> slot) const = 0;

  // ---- Of tiers with slots; CheckFailure elsewhere. Of the first `micro_batches` micro-batches.
  // IoError.
  virtual void write(UnitId unit, int32_t slot, int32_t micro_batches);
  // CorruptStateError where other bytes come back than were written.
  virtual void read(UnitId unit, int32_t slot, int32_t micro_batches);
  // Since the start.
  virtual DriveTraffic traffic() const { return {}; }
};

}  // namespace longshore
