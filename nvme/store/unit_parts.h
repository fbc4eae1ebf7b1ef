// UnitParts: groups the regions of a unit's shard into parts on the drives and in the I/O window.
// Pure arithmetic over the state format's tables; it does not depend on specific formats.
//
//   parameters  the source of the parameter that the device reads; rewritten in every version
//   rest        everything else that the update needs; rewritten in every version
//   frozen      the parameters without state; written once
//   derived     made from the master on use; in memory only
#pragma once

#include <array>
#include <cstdint>

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
    return places_[static_cast<size_t>(region)][static_cast<size_t>(segment)];
  }
  // used_bytes is exact; part_bytes is in whole blocks as on the drive.
  Bytes used_bytes(PartRole role) const { return used_[static_cast<size_t>(role)]; }
  Bytes part_bytes(PartRole role) const;
  // Returns the bytes of the parameter in the device layout: all segments in the compute dtype.
  Bytes parameter_bytes() const { return parameter_bytes_; }
  Bytes trainable_parameter_bytes() const { return trainable_parameter_bytes_; }
  // Returns whether the parameters part already has the device layout, without conversion.
  bool direct() const { return direct_; }
  // Returns whether a conversion joins two halves to fp32; otherwise it rounds masters to bf16.
  bool joins() const { return joins_; }

 private:
  PartRole role_of(Region region, Segment segment) const;

  std::array<std::array<RegionExtent, 3>, kRegions.size()> places_{};
  std::array<Bytes, 4> used_{};
  Bytes parameter_bytes_ = 0;
  Bytes trainable_parameter_bytes_ = 0;
  bool has_master_ = false;
  bool joins_ = false;
  bool direct_ = false;
};

}  // namespace longshore
