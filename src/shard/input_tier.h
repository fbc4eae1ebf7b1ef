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
#include "shard/drive_traffic.h"

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
                                                   std::optional<int32_t> slot) const = 0;

  // ---- For tiers with slots; others throw CheckFailure. Both move the first `micro_batches`
  // micro-batches. write() throws IoError.
  virtual void write(UnitId unit, int32_t slot, int32_t micro_batches);
  // Throws CorruptStateError if the bytes read differ from the bytes written.
  virtual void read(UnitId unit, int32_t slot, int32_t micro_batches);
  // Returns the bytes moved since the start.
  virtual DriveTraffic traffic() const { return {}; }
};

}  // namespace longshore
