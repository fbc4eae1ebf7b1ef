// FlatLayout: the offset of each parameter in its unit's flat parameter, and the part of it that
// each rank owns. Pure arithmetic over elements; the state format adds bytes.
//
// A flat parameter is a sequence of segments. A segment holds parameters end to end, each starting
// on a 256-element boundary, and is padded so that all ranks get equal shards of it:
//
//   [ quantised-moment segment | full-moment segment | frozen segment ]
//
// Parameters keep the unit's order inside their segment. Rank r's shard is the r-th of
// `shard_factor` equal parts of each segment. Padding belongs to no parameter.
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
// Matrices with fewer elements keep fp32 moments, like norms and biases.
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

// A contiguous part of one parameter that lies in one rank's shard.
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
  // Returns the elements of the flat parameter, padding included.
  int64_t flat_elements() const { return flat_elements_; }
  // Returns the elements with gradient and state, padding included. They come first.
  int64_t trainable_elements() const;
  // Returns a segment's range in the flat parameter. Its `elements` is a multiple of shard_factor *
  // kBlockElements, or 0 when the unit has no such parameters.
  ElementRange segment(Segment segment) const { return segments_[static_cast<size_t>(segment)]; }
  // Returns a parameter's range in the flat parameter, without padding.
  ElementRange parameter(int32_t index) const { return parameters_.at(static_cast<size_t>(index)); }
  Segment parameter_segment(int32_t index) const {
    return parameter_segments_.at(static_cast<size_t>(index));
  }
  int32_t parameter_count() const { return static_cast<int32_t>(parameters_.size()); }
  // Returns the elements of one rank's shard of a segment; equal on all ranks.
  int64_t shard_elements(Segment segment) const {
    return this->segment(segment).elements / shard_factor_;
  }
  // Returns the rank's part of a segment as a range of the flat parameter.
  ElementRange shard(Segment segment, Rank rank) const;
  // Returns the layout with an empty frozen segment: what a tier holds of a unit whose frozen
  // parameters are elsewhere.
  FlatLayout without_frozen() const;
  // Returns the pieces of parameters that the rank owns, in shard order and without padding.
  std::vector<ShardPiece> pieces(Rank rank) const;

 private:
  int32_t shard_factor_ = 1;
  int64_t flat_elements_ = 0;
  std::array<ElementRange, 3> segments_;
  std::vector<ElementRange> parameters_;
  std::vector<Segment> parameter_segments_;
  std::vector<int64_t> first_elements_;  // by parameter: offset in the whole parameter
};

// Makes the layout of every unit of a model, indexed by unit id.
std::vector<FlatLayout> make_layouts(const ModelSpec& model, int32_t shard_factor);

}  // namespace longshore
