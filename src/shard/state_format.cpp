#include "shard/state_format.h"

#include "base/errors.h"

namespace longshore {
namespace {

// Slabs start on pages, so that they can be registered and read with O_DIRECT.
constexpr Bytes kSlabAlignment = 4096;

size_t index_of(Segment segment) {
  return static_cast<size_t>(segment);
}

Bytes bytes_in_shard(const FlatLayout& layout, const StateOptions& options, Segment segment,
                     Region region) {
  if (segment == Segment::kFrozen) {
    return region == frozen_region(options) ? layout.shard_bytes(segment) : 0;
  }
  return region_bytes(options, segment, region, layout.shard_elements(segment));
}

}  // namespace

std::optional<StateFormat> parse_state_format(std::string_view name) {
  for (const StateFormatTraits& traits : kStateFormats) {
    if (traits.name == name) return traits.format;
  }
  return std::nullopt;
}

std::optional<StateFormat> narrower_than(StateFormat format) {
  const StateFormatTraits* const next = &traits_of(format) + 1;
  return next < kStateFormats.data() + kStateFormats.size() ? std::optional(next->format)
                                                            : std::nullopt;
}

std::vector<Region> regions_of(const StateOptions& options) {
  std::vector<Region> regions = {Region::kMaster, Region::kHigh, Region::kLow};
  for (const Region::Kind kind : {Region::kValues, Region::kScales}) {
    for (size_t i = 0; i < options.regions.size(); ++i) regions.emplace_back(kind, i);
  }
  return regions;
}

MomentFormat moment_format(const StateOptions& options, Segment segment, size_t index) {
  if (options.regions[index].format) return *options.regions[index].format;
  return segment == Segment::kQuantisedMoments ? moments_of_matrices(options.format)
                                               : MomentFormat::kF32;
}

Bytes region_bytes(const StateOptions& options, Segment segment, Region region, int64_t elements) {
  LONGSHORE_CHECK(segment != Segment::kFrozen) << "frozen parameters are counted in bytes";
  const bool fp32_compute = options.compute == DType::kF32;
  const bool split = splits_master(options.format);
  if (region.is_rules() && !is_kept(options.regions[region.index], segment)) return 0;
  switch (region.kind) {
    case Region::kMaster:
      return split ? 0 : 4 * elements;
    case Region::kHigh:
      return split || !fp32_compute ? 2 * elements : 0;
    case Region::kLow:
      return split ? 2 * elements : 0;
    case Region::kValues:
      return width_of(moment_format(options, segment, region.index)) * elements;
    case Region::kScales:
      return moment_blocks(moment_format(options, segment, region.index), elements) * 4;
  }
  return 0;
}

SlabLayout::SlabLayout(const FlatLayout& layout, const StateOptions& options)
    : offsets_(region_count(options)), bytes_(region_count(options)) {
  LONGSHORE_CHECK(layout.compute() == options.compute) << name_of(layout.compute());
  Bytes cursor = 0;
  for (const Region region : regions_of(options)) {
    for (Segment segment : kSegments) {
      const Bytes bytes = bytes_in_shard(layout, options, segment, region);
      offsets_.at(region.place())[index_of(segment)] = cursor;
      bytes_.at(region.place())[index_of(segment)] = bytes;
      cursor += bytes;
    }
  }
  slab_bytes_ = align_up(cursor, kSlabAlignment);
}

Bytes SlabLayout::offset(Region region, Segment segment) const {
  return offsets_.at(region.place())[index_of(segment)];
}

Bytes SlabLayout::bytes(Region region, Segment segment) const {
  return bytes_.at(region.place())[index_of(segment)];
}

Bytes SlabLayout::region_bytes(Region region) const {
  Bytes sum = 0;
  for (Segment segment : kSegments) sum += bytes(region, segment);
  return sum;
}

}  // namespace longshore
