// FlatLayout: where each parameter of a unit lies in the unit's flat parameter, and which part of
// it each rank owns. Pure arithmetic over elements; bytes come with the state format.
//
// A flat parameter is a row of segments; each segment holds parameters end to end, each starting
// on a 256-element boundary, padded so that every rank's shard of the segment is equal:
//
//   [ quantised-moment segment | full-moment segment | frozen segment ]
//
// Parameters keep the unit's order inside their segment. A rank's shard is, of each segment, the
// rank-th of `shard_factor` equal parts. Padding belongs to no parameter.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "shard/unit_spec.h"

namespace longshore {

// Every parameter and every rank's part of a segment starts at a multiple of this.
inline constexpr int64_t kBlockElements = 256;
// Matrices below this many elements keep fp32 moments, like norms and biases.
inline constexpr int64_t kSmallParameterElements = 4096;

enum class Segment : uint8_t {
  kQuantisedMoments,  // matrices; a state format may store their moments in fewer bits
  kFullMoments,       // one-dimensional and small parameters: moments are fp32 in every format
  kFrozen,            // parameters without gradient and state
};
inline constexpr std::array<Segment, 3> kSegments = {Segment::kQuantisedMoments,
                                                     Segment::kFullMoments, Segment::kFrozen};

Segment segment_of(const ParamSpec& parameter);

// A half-open range of elements.
struct ElementRange {
  int64_t begin = 0;
  int64_t elements = 0;
  int64_t end() const { return begin + elements; }
  bool operator==(const ElementRange&) const = default;
};

// A piece of one parameter that lies in one rank's shard.
struct ShardPiece {
  int32_t parameter = 0;        // index into the unit's parameters
  int64_t parameter_begin = 0;  // first element, in the whole parameter
  int64_t shard_begin = 0;      // first element, in the rank's shard of `segment`
  int64_t elements = 0;
  Segment segment = Segment::kQuantisedMoments;
};

class FlatLayout {
 public:
  // `shard_factor` >= 1: the number of ranks that share the unit.
  FlatLayout(const UnitSpec& unit, int32_t shard_factor);

  int32_t shard_factor() const { return shard_factor_; }
  // Elements of the flat parameter, padding included.
  int64_t flat_elements() const { return flat_elements_; }
  // Elements that have gradient and state, padding included: they are the flat parameter's front.
  int64_t trainable_elements() const;
  // A segment's place in the flat parameter; `elements` is a multiple of
  // shard_factor * kBlockElements, 0 when the unit has no such parameters.
  ElementRange segment(Segment segment) const { return segments_[static_cast<size_t>(segment)]; }
  // A parameter's place in the flat parameter (without padding).
  ElementRange parameter(int32_t index) const { return parameters_.at(static_cast<size_t>(index)); }
  Segment parameter_segment(int32_t index) const {
    return parameter_segments_.at(static_cast<size_t>(index));
  }
  int32_t parameter_count() const { return static_cast<int32_t>(parameters_.size()); }
  // Elements of one rank's shard of a segment; equal on all ranks.
  int64_t shard_elements(Segment segment) const {
    return this->segment(segment).elements / shard_factor_;
  }
  // The rank's part of a segment, as a range of the flat parameter.
  ElementRange shard(Segment segment, Rank rank) const;
  // Which parameters' elements the rank owns, in the order of the shard; padding is in no piece.
  std::vector<ShardPiece> pieces(Rank rank) const;

 private:
  int32_t shard_factor_ = 1;
  int64_t flat_elements_ = 0;
  std::array<ElementRange, 3> segments_;
  std::vector<ElementRange> parameters_;
  std::vector<Segment> parameter_segments_;
  std::vector<int64_t> first_elements_;  // by parameter: in the whole one
};

// The layout of every unit of a model, by unit id.
std::vector<FlatLayout> make_layouts(const ModelSpec& model, int32_t shard_factor);

}  // namespace longshore
