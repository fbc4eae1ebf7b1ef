// UnitParts: groups the regions of a unit's shard into parts on the drives and in the I/O window.
// Arithmetic over the state format's tables, which does not depend on specific formats; immutable,
// any thread.
//
//   parameters  the source of the parameter that the device reads; rewritten in every version
//   rest        everything else that the update needs; rewritten in every version
//   frozen      the parameters without state; written once
//   derived     made from the master on use; in memory only
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "nvme/parts/stripe_map.h"
#include "pinned/worker_pool.h"
#include "shard/flat_layout.h"
#include "shard/state_format.h"

namespace longshore {

enum class PartRole : uint8_t { kParameters, kRest, kFrozen, kDerived };
inline constexpr std::array<PartRole, 4> kPartRoles = {PartRole::kParameters, PartRole::kRest,
                                                       PartRole::kFrozen, PartRole::kDerived};

// The roles that have a part on the drives.
inline constexpr std::array<PartRole, 3> kStoredRoles = {PartRole::kParameters, PartRole::kRest,
                                                         PartRole::kFrozen};

constexpr size_t index_of(PartRole role) {
  return static_cast<size_t>(role);
}

struct RegionExtent {
  PartRole role = PartRole::kRest;
  Bytes offset = 0;  // in the part
  Bytes bytes = 0;   // 0: the format or the segment lacks the region
};

class UnitParts {
 public:
  UnitParts(const FlatLayout& layout, const StateOptions& options);

  RegionExtent place(Region region, Segment segment) const {
    return places_.at(region.place())[static_cast<size_t>(segment)];
  }
  // used_bytes is exact; part_bytes is in whole blocks as on the drive.
  Bytes used_bytes(PartRole role) const { return used_[static_cast<size_t>(role)]; }
  Bytes part_bytes(PartRole role) const;
  // Returns the bytes of the parameter in the device layout, all segments.
  Bytes parameter_bytes() const { return parameter_bytes_; }
  Bytes trainable_parameter_bytes() const { return trainable_parameter_bytes_; }
  // Returns whether the parameters part already has the device layout, without conversion.
  bool direct() const { return direct_; }
  // Returns whether a conversion joins two halves to fp32; otherwise it rounds masters to bf16.
  bool joins() const { return joins_; }
  // Converts the trainable parameters from their part to the device layout.
  void convert(std::span<const std::byte> part, std::span<std::byte> parameters,
               WorkerPool& pool) const;

 private:
  PartRole role_of(Region region, Segment segment) const;

  std::vector<std::array<RegionExtent, kSegments.size()>> places_;  // by Region::place
  std::array<Bytes, 4> used_{};
  Bytes width_;  // of an element in the device layout
  Bytes parameter_bytes_ = 0;
  Bytes trainable_parameter_bytes_ = 0;
  bool has_master_ = false;
  bool joins_ = false;
  bool direct_ = false;
};

// Returns the parts of all units in order, each with a text that says what its bytes mean.
std::vector<PartSpec> part_specs(const std::vector<FlatLayout>& layouts,
                                 const StateOptions& options);

}  // namespace longshore
