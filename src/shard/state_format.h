// StateFormat: which bytes a shard keeps at home, per element and segment. Pure tables.
//
// Regions of one unit's slab, in this order, each holding its segments end to end:
//   master     fp32 master (format fp32), or fp32 parameter of a frozen segment in fp32 compute
//   high       the bf16 parameter the device reads in bf16 compute; in `split` also the upper
//              half of the master
//   low        the lower 16 bits of the master (`split`)
//   exp_avg, exp_avg_sq   Adam's moments
//   gradient   the drained gradient that waits for the update
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/dtype.h"
#include "shard/flat_layout.h"

namespace longshore {

enum class StateFormat : uint8_t { kFp32, kSplit };
std::string_view name_of(StateFormat format);

enum class Region : uint8_t { kMaster, kHigh, kLow, kExpAvg, kExpAvgSq, kGradient };
inline constexpr std::array<Region, 6> kRegions = {Region::kMaster,   Region::kHigh,
                                                   Region::kLow,      Region::kExpAvg,
                                                   Region::kExpAvgSq, Region::kGradient};

// What decides the bytes of a run's state.
struct StateOptions {
  StateFormat format = StateFormat::kSplit;
  DType compute = DType::kBF16;  // kF32 or kBF16
  DType drain = DType::kBF16;    // kF32 or kBF16
};

// Bytes per element of a region of a segment; 0 where the region does not exist.
Bytes element_bytes(const StateOptions& options, Segment segment, Region region);

// The region that holds the parameter as the device reads it, contiguous over all segments; with
// `split` in fp32 compute the parameter must be joined first (`needs_join`).
constexpr bool needs_join(const StateOptions& options) {
  return options.format == StateFormat::kSplit && options.compute == DType::kF32;
}

// Where a unit's shard lies in its slab. Offsets are bytes from the slab's start.
class SlabLayout {
 public:
  // The slab of any rank's shard of `layout`; all ranks' slabs are equal.
  SlabLayout(const FlatLayout& layout, const StateOptions& options);

  Bytes slab_bytes() const { return slab_bytes_; }  // a multiple of 4096
  Bytes offset(Region region, Segment segment) const;
  Bytes bytes(Region region, Segment segment) const;
  // Sum over segments; the region's segments are contiguous from offset(region, first segment).
  Bytes region_bytes(Region region) const;

 private:
  std::array<std::array<Bytes, 3>, 6> offsets_{};
  std::array<std::array<Bytes, 3>, 6> bytes_{};
  Bytes slab_bytes_ = 0;
};

}  // namespace longshore
