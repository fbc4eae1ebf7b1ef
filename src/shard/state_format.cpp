#include "shard/state_format.h"

#include <algorithm>

namespace longshore {
namespace {

// Slabs start on pages, so that they can be registered and read with O_DIRECT.
constexpr Bytes kSlabAlignment = 4096;

size_t index_of(Region region) {
  return static_cast<size_t>(region);
}
size_t index_of(Segment segment) {
  return static_cast<size_t>(segment);
}

}  // namespace

std::string_view name_of(StateFormat format) {
  switch (format) {
    case StateFormat::kFp32:
      return "fp32";
    case StateFormat::kSplit:
      return "split";
    case StateFormat::kSplitBf16:
      return "split-bf16";
    case StateFormat::kSplitInt8:
      return "split-int8";
  }
  return "?";
}

std::optional<StateFormat> parse_state_format(std::string_view name) {
  for (const StateFormat format : kStateFormats) {
    if (name_of(format) == name) return format;
  }
  return std::nullopt;
}

std::optional<StateFormat> narrower_than(StateFormat format) {
  const auto* const next = std::ranges::find(kStateFormats, format) + 1;
  return next < kStateFormats.end() ? std::optional(*next) : std::nullopt;
}

MomentFormat moments_of_matrices(StateFormat format) {
  if (format == StateFormat::kSplitBf16) return MomentFormat::kBF16;
  return format == StateFormat::kSplitInt8 ? MomentFormat::kInt8 : MomentFormat::kF32;
}

MomentFormat moment_format(const StateOptions& options, Segment segment) {
  return segment == Segment::kQuantisedMoments ? moments_of_matrices(options.format)
                                               : MomentFormat::kF32;
}

Bytes region_bytes(const StateOptions& options, Segment segment, Region region, int64_t elements) {
  const bool fp32_compute = options.compute == DType::kF32;
  if (segment == Segment::kFrozen) {
    if (region == Region::kMaster) return fp32_compute ? 4 * elements : 0;
    if (region == Region::kHigh) return fp32_compute ? 0 : 2 * elements;
    return 0;
  }
  const bool split = splits_master(options.format);
  const MomentFormat moments = moment_format(options, segment);
  switch (region) {
    case Region::kMaster:
      return split ? 0 : 4 * elements;
    case Region::kHigh:
      return split || !fp32_compute ? 2 * elements : 0;
    case Region::kLow:
      return split ? 2 * elements : 0;
    case Region::kExpAvg:
    case Region::kExpAvgSq:
      return width_of(moments) * elements;
    case Region::kExpAvgUnits:
    case Region::kExpAvgSqUnits:
      return moments == MomentFormat::kInt8
                 ? (elements + kMomentBlockElements - 1) / kMomentBlockElements * 4
                 : 0;
  }
  return 0;
}

SlabLayout::SlabLayout(const FlatLayout& layout, const StateOptions& options) {
  Bytes cursor = 0;
  for (Region region : kRegions) {
    for (Segment segment : kSegments) {
      const Bytes bytes =
          longshore::region_bytes(options, segment, region, layout.shard_elements(segment));
      offsets_[index_of(region)][index_of(segment)] = cursor;
      bytes_[index_of(region)][index_of(segment)] = bytes;
      cursor += bytes;
    }
  }
  slab_bytes_ = align_up(cursor, kSlabAlignment);
}

Bytes SlabLayout::offset(Region region, Segment segment) const {
  return offsets_[index_of(region)][index_of(segment)];
}

Bytes SlabLayout::bytes(Region region, Segment segment) const {
  return bytes_[index_of(region)][index_of(segment)];
}

Bytes SlabLayout::region_bytes(Region region) const {
  Bytes sum = 0;
  for (Segment segment : kSegments) sum += bytes(region, segment);
  return sum;
}

}  // namespace longshore
