// The bytes that a shard keeps in its tier, per element and segment. Pure tables.
//
// A unit's slab has these regions in this order, each holding its segments end to end:
//   master     fp32 master (format fp32), or fp32 parameter of a frozen segment in fp32 compute
//   high       the bf16 parameter the device reads in bf16 compute; in the `split` formats also the
//              upper half of the master
//   low        the lower 16 bits of the master (`split`)
//   values     of each region of the update rule, in its order, as shard/moments.h stores them
//   scales     of each region in the same order: an fp32 scale for each block of 8-bit values
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

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

// The regions of drives and checkpoints that name none.
inline constexpr std::span<const StateRegion> kDefaultRegions = kAdamWRegions;

// The options that determine the bytes of a run's state.
struct StateOptions {
  StateFormat format = StateFormat::kSplitBf16;
  DType compute = DType::kBF16;  // kF32 or kBF16
  DType drain = DType::kBF16;    // kF32 or kBF16: dtype of gradients in host memory
  std::span<const StateRegion> regions = kDefaultRegions;  // the update rule's, which owns them
};

// A region of a slab. kValues and kScales belong to one of the rule's regions.
struct Region {
  enum Kind : uint8_t { kMaster, kHigh, kLow, kValues, kScales };
  Kind kind;
  size_t index;  // in the rule's list

  constexpr Region(Kind of, size_t at = 0) : kind(of), index(at) {}
  bool operator==(const Region&) const = default;
  bool is_rules() const { return kind == kValues || kind == kScales; }
  // Returns a number below region_count(options), for tables.
  constexpr size_t place() const { return kind + 2 * index; }
};
// Returns the regions in the order of a slab.
std::vector<Region> regions_of(const StateOptions& options);
inline size_t region_count(const StateOptions& options) {
  return Region::kValues + 2 * options.regions.size();
}

// Returns whether parameters of a trained segment, or of either grain, have the region.
constexpr bool is_kept(RegionUse use, bool whole_matrices) {
  return use == RegionUse::kAll || (use == RegionUse::kMatrices) == whole_matrices;
}
constexpr bool is_kept(const StateRegion& region, Segment segment) {
  return is_kept(region.use, segment == Segment::kWholeMatrices);
}

// Returns the format of a segment's values in the rule's region `index`.
MomentFormat moment_format(const StateOptions& options, Segment segment, size_t index);

// Returns the bytes of a region for `elements` elements of a trained segment; 0 if it does not
// exist.
Bytes region_bytes(const StateOptions& options, Segment segment, Region region, int64_t elements);

// Returns the region behind whose trained parameters the frozen segment lies, so that the device's
// parameter is contiguous (needs_join).
constexpr Region frozen_region(const StateOptions& options) {
  return options.compute == DType::kF32 ? Region::kMaster : Region::kHigh;
}

// Returns whether the parameter that the device reads must be joined from two halves first.
// Otherwise one region holds it, contiguous over all segments.
constexpr bool needs_join(const StateOptions& options) {
  return splits_master(options.format) && options.compute == DType::kF32;
}

// The layout of a unit's shard in its slab. Offsets are bytes from the slab's start.
class SlabLayout {
 public:
  // Lays out one rank's shard of `layout`, which has the options' compute dtype; all ranks' slabs
  // are equal.
  SlabLayout(const FlatLayout& layout, const StateOptions& options);

  Bytes slab_bytes() const { return slab_bytes_; }  // a multiple of 4096
  Bytes offset(Region region, Segment segment) const;
  Bytes bytes(Region region, Segment segment) const;
  // Returns the sum over segments, which are contiguous from offset(region, first segment).
  Bytes region_bytes(Region region) const;

 private:
  using BySegment = std::array<Bytes, kSegments.size()>;
  std::vector<BySegment> offsets_;  // by Region::place
  std::vector<BySegment> bytes_;
  Bytes slab_bytes_ = 0;
};

}  // namespace longshore
