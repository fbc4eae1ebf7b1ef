#include "nvme/store/unit_parts.h"

#include "nvme/drive/block_file.h"

namespace longshore {

UnitParts::UnitParts(const FlatLayout& layout, const StateOptions& options) {
  has_master_ = region_bytes(options, Segment::kFullMoments, Region::kMaster, kBlockElements) > 0;
  joins_ = !has_master_ && options.compute == DType::kF32;
  direct_ = has_master_ ? options.compute == DType::kF32 : !joins_;
  const Bytes width = width_of(options.compute);
  const int64_t trainable = layout.shard_elements(Segment::kQuantisedMoments) +
                            layout.shard_elements(Segment::kFullMoments);
  trainable_parameter_bytes_ = trainable * width;
  parameter_bytes_ = trainable_parameter_bytes_ + layout.shard_elements(Segment::kFrozen) * width;
  const SlabLayout slab(layout, options);
  for (const Region region : kRegions) {
    for (const Segment segment : kSegments) {
      RegionExtent& place = places_[static_cast<size_t>(region)][static_cast<size_t>(segment)];
      place.bytes = slab.bytes(region, segment);
      place.role = role_of(region, segment);
      Bytes& end = used_[static_cast<size_t>(place.role)];
      place.offset = end;
      end += place.bytes;
    }
  }
}

PartRole UnitParts::role_of(Region region, Segment segment) const {
  if (segment == Segment::kFrozen) return PartRole::kFrozen;
  if (region == Region::kMaster) return PartRole::kParameters;
  if (region == Region::kHigh) return has_master_ ? PartRole::kDerived : PartRole::kParameters;
  if (region == Region::kLow && joins_) return PartRole::kParameters;
  return PartRole::kRest;
}

Bytes UnitParts::part_bytes(PartRole role) const {
  return align_up(used_bytes(role), kBlockBytes);
}

}  // namespace longshore
