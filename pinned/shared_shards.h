// SharedShards: a tier whose parameters the machine's other ranks can read. Each rank has one
// mapping, with the same layout on all ranks of a shard group. A ShardStore implements it.
#pragma once

#include <span>

#include "base/ids.h"
#include "device/host_mapping.h"

namespace longshore {

class SharedShards {
 public:
  virtual ~SharedShards() = default;
  virtual const HostMapping& mapping() const = 0;
  // Returns the unit's parameters in the compute dtype within `mapping`, of this or another rank.
  virtual std::span<const std::byte> mapped_parameters(std::span<const std::byte> mapping,
                                                       UnitId unit) const = 0;
};

}  // namespace longshore
