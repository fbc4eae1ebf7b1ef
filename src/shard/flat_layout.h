// FlatLayout: the place of each parameter in its unit's flat parameter, and the part of it that
// each rank owns. Pure arithmetic; a value, any thread.
//
// A flat parameter is what the device reads, and a sequence of segments. A segment holds parameters
// end to end, each at a multiple of 256 elements of the compute dtype, and is padded so that all
// ranks get equal shards of it:
//
//   [ quantised-moment segment | full-moment segment | whole-matrix segment | frozen segment ]
//
// Everything is counted in bytes. Trained parameters are numbers of the compute dtype, so that
// their segments also count elements, which gradients and the state format's regions share. Frozen
// ones are stored as their types say (storage_type.h), packed ones with their scales.
//
// Parameters keep the unit's order inside their segment. Rank r's shard is the r-th of
// `shard_factor` equal parts of each segment. Padding belongs to no parameter.
//
// The whole-matrix segment has the matrices of an update rule that needs each of them on one rank;
// without such a rule it is empty. Its shards begin and end between matrices, with as little
// padding as that allows (whole_matrices.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "shard/unit_spec.h"

namespace longshore {

// Every parameter and every rank's part of a segment starts at a multiple of this many elements of
// the compute dtype.
inline constexpr int64_t kBlockElements = 256;
// Matrices with fewer elements keep fp32 moments, like norms and biases.
inline constexpr int64_t kSmallParameterElements = 4096;

enum class Segment : uint8_t {
  kQuantisedMoments,  // matrices; a state format may store their moments in fewer bits
  kFullMoments,       // one-dimensional and small parameters: moments are fp32 in every format
  kWholeMatrices,     // matrices that no rank's shard cuts; moments as their rule says, or fp32
  kFrozen,            // parameters without gradient and state
};
inline constexpr std::array<Segment, 4> kSegments = {
    Segment::kQuantisedMoments, Segment::kFullMoments, Segment::kWholeMatrices, Segment::kFrozen};
inline constexpr std::array<Segment, 3> kTrainedSegments = {
    Segment::kQuantisedMoments, Segment::kFullMoments, Segment::kWholeMatrices};

Segment segment_of(const ParamSpec& parameter);

// Half-open ranges.
struct ElementRange {
  int64_t begin = 0;
  int64_t elements = 0;
  int64_t end() const { return begin + elements; }
  bool operator==(const ElementRange&) const = default;
};
struct ByteRange {
  Bytes begin = 0;
  Bytes bytes = 0;
  Bytes end() const { return begin + bytes; }
  bool operator==(const ByteRange&) const = default;
};

// The bytes of a parameter as tiers and FrozenSource count them. Numbers are one matrix, whatever
// their shape; so are the bytes of a packed matrix. Those of a stacked parameter that is packed lie
// at equal distances, with padding behind each.
struct StoredMatrices {
  StorageType type = StorageType::kF32;
  int64_t count = 1;
  Bytes bytes = 0;     // of each, without padding
  Bytes distance = 0;  // from one to the next
  Bytes total() const { return count * distance; }
};
StoredMatrices stored_matrices(const ParamSpec& parameter, DType compute);

// A contiguous part of a trained parameter that lies in one rank's shard.
struct ShardPiece {
  int32_t parameter = 0;        // index into the unit's parameters
  int64_t parameter_begin = 0;  // first element, in the whole parameter
  int64_t shard_begin = 0;      // first element, in the rank's shard of `segment`
  int64_t elements = 0;
  Segment segment = Segment::kQuantisedMoments;
};
// A contiguous part of a frozen parameter that lies in one rank's shard. It has whole numbers, but
// may begin and end anywhere in a packed matrix.
struct FrozenPiece {
  int32_t parameter = 0;
  StorageType type = StorageType::kF32;
  Bytes parameter_begin = 0;  // first byte, in the whole parameter
  Bytes shard_begin = 0;      // first byte, in the rank's shard of the frozen segment
  Bytes bytes = 0;
};

class FlatLayout {
 public:
  // `shard_factor` >= 1: the number of ranks that share the unit.
  FlatLayout(const UnitSpec& unit, int32_t shard_factor, DType compute);

  int32_t shard_factor() const { return shard_factor_; }
  DType compute() const { return compute_; }
  int32_t parameter_count() const { return static_cast<int32_t>(parameters_.size()); }
  Segment parameter_segment(int32_t index) const {
    return parameter_segments_.at(static_cast<size_t>(index));
  }

  // ---- Bytes, padding included.
  Bytes flat_bytes() const { return flat_bytes_; }
  // Returns the bytes with gradient and state. They come first.
  Bytes trainable_bytes() const { return segment_bytes(Segment::kFrozen).begin; }
  // Returns a segment's range in the flat parameter; its bytes are 0 when the unit has no such
  // parameters.
  ByteRange segment_bytes(Segment segment) const { return segments_[static_cast<size_t>(segment)]; }
  // Returns a parameter's range in the flat parameter, without padding.
  ByteRange parameter_bytes(int32_t index) const {
    return parameters_.at(static_cast<size_t>(index));
  }
  // Return the bytes of one rank's shard, all segments or one; equal on all ranks.
  Bytes shard_bytes() const { return flat_bytes_ / shard_factor_; }
  Bytes shard_bytes(Segment segment) const { return segment_bytes(segment).bytes / shard_factor_; }
  // Returns the rank's part of a segment as a range of the flat parameter.
  ByteRange shard_place(Segment segment, Rank rank) const;
  // Returns the pieces of frozen parameters that the rank owns, in shard order, without padding.
  std::vector<FrozenPiece> frozen_pieces(Rank rank) const;

  // ---- Elements of the trained segments, padding included.
  int64_t trainable_elements() const { return trainable_bytes() / width_of(compute_); }
  // Its `elements` is a multiple of shard_factor * kBlockElements.
  ElementRange segment(Segment segment) const;
  ElementRange parameter(int32_t index) const;
  int64_t shard_elements(Segment segment) const {
    return this->segment(segment).elements / shard_factor_;
  }
  ElementRange shard(Segment segment, Rank rank) const;
  // Returns the elements of one rank's shards of the trained segments before this one.
  int64_t shard_elements_before(Segment segment) const;
  // Returns the elements of a rank's shard that hold nothing because matrices are kept whole, on
  // the average over ranks.
  int64_t whole_matrix_padding() const;
  std::vector<ShardPiece> trained_pieces(Rank rank) const;

  // Returns the layout with an empty frozen segment: what a tier holds of a unit whose frozen
  // parameters are elsewhere.
  FlatLayout without_frozen() const;

 private:
  // Calls add(parameter's index, its part in the shard as ranges of the whole parameter and of the
  // shard) for each parameter of the segment that the rank has a part of.
  template <typename Add>
  void for_parts(Segment segment, Rank rank, const Add& add) const;
  ElementRange elements_of(ByteRange range, Segment segment) const;
  // Places the parameters of the whole-matrix segment, which begins at `begin`; returns its end.
  Bytes place_matrices(const UnitSpec& unit, Bytes begin);

  int32_t shard_factor_ = 1;
  DType compute_ = DType::kF32;
  Bytes flat_bytes_ = 0;
  std::array<ByteRange, kSegments.size()> segments_;
  std::vector<ByteRange> parameters_;
  std::vector<Segment> parameter_segments_;
  std::vector<StorageType> types_;  // by parameter
  std::vector<Bytes> first_bytes_;  // by parameter: offset in the whole parameter
  Bytes matrix_padding_ = 0;        // of all ranks
};

// Makes the layout of every unit of a model, indexed by unit id.
std::vector<FlatLayout> make_layouts(const ModelSpec& model, int32_t shard_factor, DType compute);

}  // namespace longshore
