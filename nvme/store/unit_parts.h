// UnitParts: how the regions of a unit's shard are grouped on the drives and in the I/O window.
// Pure arithmetic over the state format's tables; knows no format by name.
//
//   parameters  what the parameter that the device reads is made of: rewritten with every version
//   rest        everything else that the update needs: rewritten with every version
//   frozen      the parameters without state: written once
//   derived     made from the master by whoever needs it: in memory only
#pragma once

#include <array>
#include <cstdint>

#include "shard/state_format.h"

namespace longshore {

enum class PartRole : uint8_t { kParameters, kRest, kFrozen, kDerived };
inline constexpr std::array<PartRole, 4> kPartRoles = {PartRole::kParameters, PartRole::kRest,
                                                       PartRole::kFrozen, PartRole::kDerived};

// Those that have a part on the drives.
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
  // Exact, and in whole blocks as on the drive.
  Bytes used_bytes(PartRole role) const { return used_[static_cast<size_t>(role)]; }
  Bytes part_bytes(PartRole role) const;
  // The parameter as the device reads it: all segments, compute dtype.
  Bytes parameter_bytes() const { return parameter_bytes_; }
  Bytes trainable_parameter_bytes() const { return trainable_parameter_bytes_; }
  // The bytes of the parameters part are the parameter itself, without conversion.
  bool direct() const { return direct_; }
  // Makes fp32 of two halves (else, if not direct, bf16 of the master).
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
