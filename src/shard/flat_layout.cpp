#include "shard/flat_layout.h"

#include <algorithm>

#include "base/errors.h"
#include "shard/whole_matrices.h"

namespace longshore {

Segment segment_of(const ParamSpec& parameter) {
  if (parameter.frozen) return Segment::kFrozen;
  if (parameter.whole_matrices) return Segment::kWholeMatrices;
  const bool small =
      !parameter.is_matrix() || parameter.whole().elements() < kSmallParameterElements;
  return small ? Segment::kFullMoments : Segment::kQuantisedMoments;
}

StoredMatrices stored_matrices(const ParamSpec& parameter, DType compute) {
  const StorageType type = parameter.storage(compute);
  const std::span<const int64_t> shape = parameter.shape;
  if (!is_packed(type) || !parameter.stacked) {
    const Bytes bytes = stored_bytes(type, shape);
    return {.type = type, .bytes = bytes, .distance = bytes};
  }
  const Bytes bytes = stored_bytes(type, shape.last(2));
  return {.type = type,
          .count = shape.front(),
          .bytes = bytes,
          .distance = align_up(bytes, kBlockElements * width_of(compute))};
}

FlatLayout::FlatLayout(const UnitSpec& unit, int32_t shard_factor, DType compute)
    : shard_factor_(shard_factor), compute_(compute) {
  LONGSHORE_CHECK(shard_factor >= 1) << shard_factor;
  const Bytes alignment = kBlockElements * width_of(compute);
  std::vector<Bytes> bytes;
  for (const ParamSpec& parameter : unit.parameters) {
    parameter_segments_.push_back(segment_of(parameter));
    const StoredMatrices stored = stored_matrices(parameter, compute);
    types_.push_back(stored.type);
    bytes.push_back(stored.total());
    // A row of a stacked parameter that is packed is a matrix, another row is its share of numbers.
    first_bytes_.push_back(
        parameter.first_row == 0 ? 0 : parameter.first_row * (bytes.back() / parameter.shape[0]));
    // Otherwise the moment blocks, and so their bits, would depend on how the parameter is cut.
    LONGSHORE_CHECK(first_bytes_.back() % alignment == 0) << parameter.name;
  }
  parameters_.resize(unit.parameters.size());
  Bytes cursor = 0;
  for (Segment segment : kSegments) {
    const Bytes begin = cursor;
    if (segment == Segment::kWholeMatrices) {
      const Bytes end = place_matrices(unit, begin);
      segments_[static_cast<size_t>(segment)] = {begin, end - begin};
      cursor = end;
      continue;
    }
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      if (parameter_segments_[i] != segment) continue;
      parameters_[i] = {cursor, bytes[i]};
      cursor = align_up(parameters_[i].end(), alignment);
    }
    cursor = begin + align_up(cursor - begin, alignment * shard_factor);
    segments_[static_cast<size_t>(segment)] = {begin, cursor - begin};
  }
  flat_bytes_ = cursor;
}

Bytes FlatLayout::place_matrices(const UnitSpec& unit, Bytes begin) {
  const int64_t width = width_of(compute_);
  std::vector<UncutParameter> all;
  std::vector<size_t> indices;
  int64_t elements = 0;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    if (parameter_segments_[i] != Segment::kWholeMatrices) continue;
    all.push_back(uncut_parameter(unit.parameters[i], kBlockElements));
    elements += align_up(all.back().elements, kBlockElements);
    indices.push_back(i);
  }
  const MatrixShards shards = share_matrices(all, shard_factor_, kBlockElements);
  for (size_t i = 0; i < all.size(); ++i) {
    parameters_[indices[i]] = {begin + shards.begins[i] * width, all[i].elements * width};
  }
  const int64_t placed = shards.shard_elements * shard_factor_;
  matrix_padding_ = (placed - elements) * width;
  return begin + placed * width;
}

int64_t FlatLayout::shard_elements_before(Segment segment) const {
  int64_t sum = 0;
  for (const Segment earlier : kTrainedSegments) {
    if (earlier < segment) sum += shard_elements(earlier);
  }
  return sum;
}

int64_t FlatLayout::whole_matrix_padding() const {
  return matrix_padding_ / width_of(compute_) / shard_factor_;
}

FlatLayout FlatLayout::without_frozen() const {
  FlatLayout rest = *this;
  rest.flat_bytes_ = trainable_bytes();
  rest.segments_[static_cast<size_t>(Segment::kFrozen)].bytes = 0;
  return rest;
}

ByteRange FlatLayout::shard_place(Segment segment, Rank rank) const {
  LONGSHORE_CHECK(rank.value >= 0 && rank.value < shard_factor_) << rank;
  const Bytes bytes = shard_bytes(segment);
  return {segment_bytes(segment).begin + rank.value * bytes, bytes};
}

ElementRange FlatLayout::elements_of(ByteRange range, Segment segment) const {
  LONGSHORE_CHECK(segment != Segment::kFrozen) << "frozen parameters are counted in bytes";
  return {range.begin / width_of(compute_), range.bytes / width_of(compute_)};
}

ElementRange FlatLayout::segment(Segment segment) const {
  return elements_of(segment_bytes(segment), segment);
}

ElementRange FlatLayout::parameter(int32_t index) const {
  return elements_of(parameter_bytes(index), parameter_segment(index));
}

ElementRange FlatLayout::shard(Segment segment, Rank rank) const {
  return elements_of(shard_place(segment, rank), segment);
}

template <typename Add>
void FlatLayout::for_parts(Segment segment, Rank rank, const Add& add) const {
  const ByteRange own = shard_place(segment, rank);
  for (int32_t i = 0; i < parameter_count(); ++i) {
    if (parameter_segment(i) != segment) continue;
    const ByteRange whole = parameter_bytes(i);
    const Bytes begin = std::max(whole.begin, own.begin);
    const Bytes bytes = std::min(whole.end(), own.end()) - begin;
    if (bytes <= 0) continue;
    const Bytes first = first_bytes_[static_cast<size_t>(i)];
    add(i, ByteRange{first + begin - whole.begin, bytes}, ByteRange{begin - own.begin, bytes});
  }
}

std::vector<ShardPiece> FlatLayout::trained_pieces(Rank rank) const {
  std::vector<ShardPiece> pieces;
  for (Segment segment : kTrainedSegments) {
    for_parts(segment, rank, [&](int32_t index, ByteRange in_parameter, ByteRange in_shard) {
      const ElementRange place = elements_of(in_shard, segment);
      pieces.push_back(
          {index, elements_of(in_parameter, segment).begin, place.begin, place.elements, segment});
    });
  }
  return pieces;
}

std::vector<FrozenPiece> FlatLayout::frozen_pieces(Rank rank) const {
  std::vector<FrozenPiece> pieces;
  for_parts(Segment::kFrozen, rank, [&](int32_t index, ByteRange in_parameter, ByteRange in_shard) {
    pieces.push_back({index, types_[static_cast<size_t>(index)], in_parameter.begin, in_shard.begin,
                      in_shard.bytes});
  });
  return pieces;
}

std::vector<FlatLayout> make_layouts(const ModelSpec& model, int32_t shard_factor, DType compute) {
  std::vector<FlatLayout> layouts;
  layouts.reserve(model.units.size());
  for (const UnitSpec& unit : model.units) layouts.emplace_back(unit, shard_factor, compute);
  return layouts;
}

}  // namespace longshore
