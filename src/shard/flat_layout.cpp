#include "shard/flat_layout.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {

Segment segment_of(const ParamSpec& parameter) {
  if (parameter.frozen) return Segment::kFrozen;
  const bool small =
      !parameter.is_matrix() || parameter.whole().elements() < kSmallParameterElements;
  return small ? Segment::kFullMoments : Segment::kQuantisedMoments;
}

FlatLayout::FlatLayout(const UnitSpec& unit, int32_t shard_factor) : shard_factor_(shard_factor) {
  LONGSHORE_CHECK(shard_factor >= 1) << shard_factor;
  parameters_.resize(unit.parameters.size());
  for (const ParamSpec& parameter : unit.parameters) {
    parameter_segments_.push_back(segment_of(parameter));
    first_elements_.push_back(parameter.first_element());
    // Otherwise the moment blocks, and so their bits, would depend on how the parameter is cut.
    LONGSHORE_CHECK(first_elements_.back() % kBlockElements == 0) << parameter.name;
  }
  int64_t cursor = 0;
  for (Segment segment : kSegments) {
    const int64_t begin = cursor;
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      if (parameter_segments_[i] != segment) continue;
      parameters_[i] = {cursor, unit.parameters[i].elements()};
      cursor = align_up(parameters_[i].end(), kBlockElements);
    }
    cursor = begin + align_up(cursor - begin, kBlockElements * shard_factor);
    segments_[static_cast<size_t>(segment)] = {begin, cursor - begin};
  }
  flat_elements_ = cursor;
}

int64_t FlatLayout::trainable_elements() const {
  return segment(Segment::kFrozen).begin;
}

FlatLayout FlatLayout::without_frozen() const {
  FlatLayout rest = *this;
  rest.flat_elements_ = trainable_elements();
  rest.segments_[static_cast<size_t>(Segment::kFrozen)].elements = 0;
  return rest;
}

ElementRange FlatLayout::shard(Segment segment, Rank rank) const {
  LONGSHORE_CHECK(rank.value >= 0 && rank.value < shard_factor_) << rank;
  const int64_t elements = shard_elements(segment);
  return {this->segment(segment).begin + rank.value * elements, elements};
}

std::vector<ShardPiece> FlatLayout::pieces(Rank rank) const {
  std::vector<ShardPiece> pieces;
  for (Segment segment : kSegments) {
    const ElementRange own = shard(segment, rank);
    for (int32_t i = 0; i < parameter_count(); ++i) {
      if (parameter_segment(i) != segment) continue;
      const ElementRange whole = parameter(i);
      const int64_t begin = std::max(whole.begin, own.begin);
      const int64_t end = std::min(whole.end(), own.end());
      if (begin >= end) continue;
      const int64_t first = first_elements_[static_cast<size_t>(i)];
      pieces.push_back({i, first + begin - whole.begin, begin - own.begin, end - begin, segment});
    }
  }
  return pieces;
}

std::vector<FlatLayout> make_layouts(const ModelSpec& model, int32_t shard_factor) {
  std::vector<FlatLayout> layouts;
  layouts.reserve(model.units.size());
  for (const UnitSpec& unit : model.units) layouts.emplace_back(unit, shard_factor);
  return layouts;
}

}  // namespace longshore
