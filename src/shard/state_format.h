// The bytes that a shard keeps in its tier, per element and segment. Pure tables.
//
// A unit's slab has these regions in this order, each holding its segments end to end:
//   master     fp32 master (format fp32), or fp32 parameter of a frozen segment in fp32 compute
//   high       the bf16 parameter the device reads in bf16 compute; in the `split` formats also the
//              upper half of the master
//   low        the lower 16 bits of the master (`split`)
//   exp_avg, exp_avg_sq   Adam's moments, as shard/moments.h stores them
//   exp_avg_scales, exp_avg_sq_scales   an fp32 scale for each block of 8-bit moments
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/dtype.h"
#include "shard/flat_layout.h"
#include "shard/moments.h"
#include "shard/policy.h"

namespace longshore {

// The properties of a format; all other code reads this table. kFp32 and kSplit are exact and agree
// bit for bit. The others split the master in the same way and store the moments of matrices in
// fewer bits.
struct StateFormatTraits {
  StateFormat format;
  std::string_view name;  // the name in the run file: "split-bf16"
  bool splits_master;
  MomentFormat moments;  // of matrices; small and one-dimensional parameters keep fp32 moments
};
// The formats are in order of decreasing size and precision.
inline constexpr std::array<StateFormatTraits, 4> kStateFormats = {{
    {StateFormat::kFp32, "fp32", false, MomentFormat::kF32},
    {StateFormat::kSplit, "split", true, MomentFormat::kF32},
    {StateFormat::kSplitBf16, "split-bf16", true, MomentFormat::kBF16},
    {StateFormat::kSplitInt8, "split-int8", true, MomentFormat::kInt8},
}};

constexpr const StateFormatTraits& traits_of(StateFormat format) {
  return *std::ranges::find(kStateFormats, format, &StateFormatTraits::format);
}
constexpr std::string_view name_of(StateFormat format) {
  return traits_of(format).name;
}
std::optional<StateFormat> parse_state_format(std::string_view name);
// Returns the next smaller format; nullopt after the last.
std::optional<StateFormat> narrower_than(StateFormat format);

constexpr bool splits_master(StateFormat format) {
  return traits_of(format).splits_master;
}
constexpr MomentFormat moments_of_matrices(StateFormat format) {
  return traits_of(format).moments;
}
constexpr bool is_exact(StateFormat format) {
  return moments_of_matrices(format) == MomentFormat::kF32;
}

enum class Region : uint8_t {
  kMaster,
  kHigh,
  kLow,
  kExpAvg,
  kExpAvgSq,
  kExpAvgScales,
  kExpAvgSqScales
};
inline constexpr std::array<Region, 7> kRegions = {
    Region::kMaster,   Region::kHigh,         Region::kLow,           Region::kExpAvg,
    Region::kExpAvgSq, Region::kExpAvgScales, Region::kExpAvgSqScales};

// The options that determine the bytes of a run's state.
struct StateOptions {
  StateFormat format = StateFormat::kSplitBf16;
  DType compute = DType::kBF16;  // kF32 or kBF16
  DType drain = DType::kBF16;    // kF32 or kBF16: dtype of gradients in host memory
};

MomentFormat moment_format(const StateOptions& options, Segment segment);

// Returns the bytes of a region for `elements` elements of a segment; 0 if it does not exist.
Bytes region_bytes(const StateOptions& options, Segment segment, Region region, int64_t elements);

// Returns whether the parameter that the device reads must be joined from two halves first.
// Otherwise one region holds it, contiguous over all segments.
constexpr bool needs_join(const StateOptions& options) {
  return splits_master(options.format) && options.compute == DType::kF32;
}

// The layout of a unit's shard in its slab. Offsets are bytes from the slab's start.
class SlabLayout {
 public:
  // Lays out one rank's shard of `layout`; all ranks' slabs are equal.
  SlabLayout(const FlatLayout& layout, const StateOptions& options);

  Bytes slab_bytes() const { return slab_bytes_; }  // a multiple of 4096
  Bytes offset(Region region, Segment segment) const;
  Bytes bytes(Region region, Segment segment) const;
  // Returns the sum over segments, which are contiguous from offset(region, first segment).
  Bytes region_bytes(Region region) const;

 private:
  std::array<std::array<Bytes, 3>, kRegions.size()> offsets_{};
  std::array<std::array<Bytes, 3>, kRegions.size()> bytes_{};
  Bytes slab_bytes_ = 0;
};

}  // namespace longshore
