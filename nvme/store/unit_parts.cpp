#include "nvme/store/unit_parts.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

// The elements that one task of a conversion handles.
constexpr int64_t kConvertBlockElements = int64_t{1} << 18;

// Returns which parameters are kept whole, because units that keep others whole may have the same
// sizes; empty if none are.
std::string whole_matrices_text(const FlatLayout& layout) {
  std::string indices;
  for (int32_t i = 0; i < layout.parameter_count(); ++i) {
    const bool whole = layout.parameter_segment(i) == Segment::kWholeMatrices;
    if (whole) indices += (indices.empty() ? "" : " ") + std::to_string(i);
  }
  return indices.empty() ? "" : ", whole matrices " + hash_text(hash64(indices));
}

}  // namespace

UnitParts::UnitParts(const FlatLayout& layout, const StateOptions& options)
    : places_(region_count(options)), width_(width_of(options.compute)) {
  has_master_ = region_bytes(options, Segment::kFullMoments, Region::kMaster, kBlockElements) > 0;
  joins_ = !has_master_ && options.compute == DType::kF32;
  direct_ = has_master_ ? options.compute == DType::kF32 : !joins_;
  parameter_bytes_ = layout.shard_bytes();
  trainable_parameter_bytes_ = parameter_bytes_ - layout.shard_bytes(Segment::kFrozen);
  const SlabLayout slab(layout, options);
  for (const Region region : regions_of(options)) {
    for (const Segment segment : kSegments) {
      RegionExtent& place = places_[region.place()][static_cast<size_t>(segment)];
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

void UnitParts::convert(std::span<const std::byte> part, std::span<std::byte> parameters,
                        WorkerPool& pool) const {
  const int64_t elements = trainable_parameter_bytes_ / width_;
  const auto count = static_cast<size_t>(elements);
  const int64_t blocks = (elements + kConvertBlockElements - 1) / kConvertBlockElements;
  pool.for_each_block(blocks, [&](int64_t block) {
    const auto begin = static_cast<size_t>(block * kConvertBlockElements);
    const size_t end = std::min(begin + static_cast<size_t>(kConvertBlockElements), count);
    if (joins_) {
      const auto halves = as_span<uint16_t>(part.first(count * 4));
      const auto joined = as_span<float>(parameters);
      for (size_t i = begin; i < end; ++i) joined[i] = join_master(halves[i], halves[count + i]);
    } else {
      const auto master = as_span<float>(part.first(count * 4));
      const auto high = as_span<uint16_t>(parameters);
      for (size_t i = begin; i < end; ++i) high[i] = master_high(master[i]);
    }
  });
}

std::vector<PartSpec> part_specs(const std::vector<FlatLayout>& layouts,
                                 const StateOptions& options) {
  constexpr std::array<const char*, 3> kNames = {"parameters", "moments", "frozen parameters"};
  // Two formats may have parts of equal sizes, so the layout includes the meaning of the bytes.
  std::string meaning = std::string(", ") + std::string(name_of(options.format)) +
                        (options.compute == DType::kF32 ? " for fp32" : " for bf16");
  if (has_scales(moments_of_matrices(options.format))) {
    meaning += ", codes " + std::to_string(kMomentCodeVersion);
  }
  if (!std::ranges::equal(options.regions, kDefaultRegions)) {
    for (const StateRegion& region : options.regions) meaning += ", " + std::string(region.name);
  }
  std::vector<PartSpec> specs;
  for (size_t u = 0; u < layouts.size(); ++u) {
    const UnitParts parts(layouts[u], options);
    for (const PartRole role : kStoredRoles) {
      if (parts.part_bytes(role) == 0) continue;
      specs.push_back({"unit " + std::to_string(u) + "'s " + kNames[index_of(role)] + meaning +
                           whole_matrices_text(layouts[u]),
                       parts.part_bytes(role), role != PartRole::kFrozen});
    }
  }
  return specs;
}

}  // namespace longshore
