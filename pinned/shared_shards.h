// SharedShards: a tier that the machine's other ranks read parameters from: one mapping on each
// rank, which looks the same in all ranks of a shard group. A side of some ShardStore; it owns
// nothing.
#pragma once

#include <span>

#include "base/ids.h"
#include "device/host_mapping.h"

namespace longshore {

class SharedShards {
 public:
  virtual ~SharedShards() = default;
  virtual const HostMapping& mapping() const = 0;
  // A unit's parameter bytes, as the device reads them, in `mapping`, this rank's or another's.
  virtual std::span<const std::byte> mapped_parameters(std::span<const std::byte> mapping,
                                                       UnitId unit) const = 0;
};

}  // namespace longshore
