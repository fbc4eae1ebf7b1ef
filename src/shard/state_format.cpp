#include "shard/state_format.h"

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
  return format == StateFormat::kFp32 ? "fp32" : "split";
}

Bytes element_bytes(const StateOptions& options, Segment segment, Region region) {
  const bool fp32_compute = options.compute == DType::kF32;
  if (segment == Segment::kFrozen) {
    if (region == Region::kMaster) return fp32_compute ? 4 : 0;
    if (region == Region::kHigh) return fp32_compute ? 0 : 2;
    return 0;
  }
  const bool split = options.format == StateFormat::kSplit;
  switch (region) {
    case Region::kMaster:
      return split ? 0 : 4;
    case Region::kHigh:
      return split || !fp32_compute ? 2 : 0;
    case Region::kLow:
      return split ? 2 : 0;
    case Region::kExpAvg:
    case Region::kExpAvgSq:
      return 4;
    case Region::kGradient:
      return width_of(options.drain);
  }
  return 0;
}

SlabLayout::SlabLayout(const FlatLayout& layout, const StateOptions& options) {
  Bytes cursor = 0;
  for (Region region : kRegions) {
    for (Segment segment : kSegments) {
      const Bytes bytes = layout.shard_elements(segment) * element_bytes(options, segment, region);
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
