// Properties of the flat layout over many random units and shard factors.
#include "shard/flat_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/errors.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

using fakes::make_parameter;

// Returns random shapes of 0 to 4 dimensions, among them scalars, primes and dimensions of one.
UnitSpec random_unit(std::mt19937& random) {
  UnitSpec unit;
  unit.name = "unit";
  const int count = std::uniform_int_distribution<int>(1, 12)(random);
  for (int i = 0; i < count; ++i) {
    ParamSpec parameter;
    parameter.name = "p" + std::to_string(i);
    const int dimensions = std::uniform_int_distribution<int>(0, 4)(random);
    for (int d = 0; d < dimensions; ++d) {
      const int most = d == 0 ? 700 : 9;
      parameter.shape.push_back(std::uniform_int_distribution<int>(1, most)(random));
    }
    parameter.frozen = std::uniform_int_distribution<int>(0, 4)(random) == 0;
    parameter.stays_fp32 = parameter.frozen && i % 2 == 0;
    unit.parameters.push_back(parameter);
  }
  return unit;
}

struct Case {
  UnitSpec unit;
  FlatLayout layout;
  Bytes alignment() const { return kBlockElements * width_of(layout.compute()); }
  Bytes bytes_of(int32_t parameter) const {
    const ParamSpec& spec = unit.parameters[static_cast<size_t>(parameter)];
    return spec.elements() * (spec.stays_fp32 ? 4 : width_of(layout.compute()));
  }
};

std::vector<Case> random_cases() {
  std::mt19937 random(20240601);
  std::vector<Case> cases;
  for (int i = 0; i < 40; ++i) {
    UnitSpec unit = random_unit(random);
    const DType compute = i % 2 == 0 ? DType::kBF16 : DType::kF32;
    for (int factor : {1, 2, 3, 7, 8, 64}) {
      cases.push_back({unit, FlatLayout(unit, factor, compute)});
    }
  }
  return cases;
}

// Every rank has an equal aligned shard of every segment.
TEST(FlatLayout, GivesEveryRankAnEqualAlignedShardOfEverySegment) {
  for (const Case& c : random_cases()) {
    Bytes cursor = 0;
    for (Segment segment : kSegments) {
      const ByteRange whole = c.layout.segment_bytes(segment);
      ASSERT_EQ(whole.begin, cursor);
      cursor = whole.end();
      ASSERT_EQ(whole.bytes, c.layout.shard_bytes(segment) * c.layout.shard_factor());
      ASSERT_EQ(c.layout.shard_bytes(segment) % c.alignment(), 0);
      Bytes shard_cursor = whole.begin;
      for (int32_t rank = 0; rank < c.layout.shard_factor(); ++rank) {
        const ByteRange shard = c.layout.shard_place(segment, Rank(rank));
        ASSERT_EQ(shard.begin, shard_cursor);
        shard_cursor = shard.end();
      }
      ASSERT_EQ(shard_cursor, whole.end());
    }
    ASSERT_EQ(cursor, c.layout.flat_bytes());
    ASSERT_EQ(cursor, c.layout.shard_bytes() * c.layout.shard_factor());
  }
}

// Goal: the elements of a trained segment are its bytes, counted in the compute dtype. Those of the
// frozen segment are not counted.
TEST(FlatLayout, CountsElementsOfTrainedSegmentsOnly) {
  for (const Case& c : random_cases()) {
    const Bytes width = width_of(c.layout.compute());
    for (Segment segment : {Segment::kQuantisedMoments, Segment::kFullMoments}) {
      const ElementRange elements = c.layout.segment(segment);
      const ByteRange bytes = c.layout.segment_bytes(segment);
      ASSERT_EQ(ByteRange(elements.begin * width, elements.elements * width), bytes);
      ASSERT_EQ(c.layout.shard_elements(segment) * width, c.layout.shard_bytes(segment));
      const Rank last(c.layout.shard_factor() - 1);
      ASSERT_EQ(c.layout.shard(segment, last).begin * width,
                c.layout.shard_place(segment, last).begin);
    }
    ASSERT_EQ(c.layout.trainable_elements() * width, c.layout.trainable_bytes());
    ASSERT_THROW(c.layout.segment(Segment::kFrozen), CheckFailure);
    ASSERT_THROW(c.layout.shard(Segment::kFrozen, Rank(0)), CheckFailure);
    for (int32_t i = 0; i < c.layout.parameter_count(); ++i) {
      if (c.layout.parameter_segment(i) == Segment::kFrozen) {
        ASSERT_THROW(c.layout.parameter(i), CheckFailure);
      } else {
        ASSERT_EQ(c.layout.parameter(i).elements,
                  c.unit.parameters[static_cast<size_t>(i)].elements());
      }
    }
  }
}

// Every parameter starts on a block inside its segment and overlaps no other.
TEST(FlatLayout, StartsEveryParameterOnABlockInsideItsSegmentWithoutOverlap) {
  for (const Case& c : random_cases()) {
    ASSERT_EQ(c.layout.parameter_count(), static_cast<int32_t>(c.unit.parameters.size()));
    std::vector<ByteRange> ranges;
    for (int32_t i = 0; i < c.layout.parameter_count(); ++i) {
      const ByteRange range = c.layout.parameter_bytes(i);
      const ByteRange segment = c.layout.segment_bytes(c.layout.parameter_segment(i));
      ASSERT_EQ(range.begin % c.alignment(), 0);
      ASSERT_EQ(range.bytes, c.bytes_of(i));
      ASSERT_GE(range.begin, segment.begin);
      ASSERT_LE(range.end(), segment.end());
      for (const ByteRange& other : ranges) {
        ASSERT_TRUE(range.end() <= other.begin || other.end() <= range.begin);
      }
      ranges.push_back(range);
    }
  }
}

// Trainable segments come first.
TEST(FlatLayout, PutsTrainableSegmentsInFront) {
  for (const Case& c : random_cases()) {
    for (int32_t i = 0; i < c.layout.parameter_count(); ++i) {
      const bool frozen = c.unit.parameters[static_cast<size_t>(i)].frozen;
      ASSERT_EQ(c.layout.parameter_bytes(i).begin < c.layout.trainable_bytes(), !frozen);
    }
    if (!c.unit.has_trainable()) {
      ASSERT_EQ(c.layout.trainable_elements(), 0);
    }
  }
}

// Over all ranks, every element of every trained parameter, and every byte of every frozen one, is
// in exactly one piece.
TEST(FlatLayout, CoversEveryElementOfEveryParameterByExactlyOnePieceOverAllRanks) {
  for (const Case& c : random_cases()) {
    // Pieces come in order, so each begins where the last one of its parameter ended.
    std::vector<int64_t> covered(c.unit.parameters.size(), 0);
    for (int32_t rank = 0; rank < c.layout.shard_factor(); ++rank) {
      for (const ShardPiece& piece : c.layout.trained_pieces(Rank(rank))) {
        ASSERT_GT(piece.elements, 0);
        ASSERT_EQ(piece.parameter_begin % kBlockElements, 0);
        ASSERT_EQ(piece.shard_begin % kBlockElements, 0);
        ASSERT_LE(piece.shard_begin + piece.elements, c.layout.shard_elements(piece.segment));
        const int64_t flat = c.layout.shard(piece.segment, Rank(rank)).begin + piece.shard_begin;
        ASSERT_EQ(flat, c.layout.parameter(piece.parameter).begin + piece.parameter_begin);
        int64_t& end = covered[static_cast<size_t>(piece.parameter)];
        ASSERT_EQ(piece.parameter_begin, end);
        end += piece.elements;
      }
      for (const FrozenPiece& piece : c.layout.frozen_pieces(Rank(rank))) {
        ASSERT_GT(piece.bytes, 0);
        ASSERT_EQ(piece.parameter_begin % c.alignment(), 0);
        ASSERT_EQ(piece.shard_begin % c.alignment(), 0);
        ASSERT_LE(piece.shard_begin + piece.bytes, c.layout.shard_bytes(Segment::kFrozen));
        const Bytes flat =
            c.layout.shard_place(Segment::kFrozen, Rank(rank)).begin + piece.shard_begin;
        ASSERT_EQ(flat, c.layout.parameter_bytes(piece.parameter).begin + piece.parameter_begin);
        Bytes& end = covered[static_cast<size_t>(piece.parameter)];
        ASSERT_EQ(piece.parameter_begin, end);
        end += piece.bytes;
      }
    }
    for (size_t i = 0; i < covered.size(); ++i) {
      const bool frozen = c.unit.parameters[i].frozen;
      ASSERT_EQ(covered[i],
                frozen ? c.bytes_of(static_cast<int32_t>(i)) : c.unit.parameters[i].elements());
    }
  }
}

// Small and one-dimensional parameters are not in the quantised segment.
TEST(FlatLayout, KeepsSmallAndOneDimensionalParametersOutOfTheQuantisedSegment) {
  EXPECT_EQ(segment_of(make_parameter("norm", {100000})), Segment::kFullMoments);
  EXPECT_EQ(segment_of(make_parameter("scalar", {})), Segment::kFullMoments);
  EXPECT_EQ(segment_of(make_parameter("small", {63, 65})), Segment::kFullMoments);
  EXPECT_EQ(segment_of(make_parameter("matrix", {64, 64})), Segment::kQuantisedMoments);
  EXPECT_EQ(segment_of(make_parameter("frozen", {64, 64}, true)), Segment::kFrozen);
}

// A rank outside the shard factor is refused.
TEST(FlatLayout, RefusesARankOutsideTheShardFactor) {
  UnitSpec unit;
  unit.parameters = {make_parameter("w", {10})};
  const FlatLayout layout(unit, 2, DType::kBF16);
  EXPECT_THROW(layout.shard(Segment::kFullMoments, Rank(2)), CheckFailure);
  EXPECT_THROW(layout.shard(Segment::kFullMoments, Rank(-1)), CheckFailure);
  EXPECT_THROW(FlatLayout(unit, 0, DType::kBF16), CheckFailure);
}

// Goal: rows of a parameter are laid out like the whole parameter: same elements by the whole's
// numbers, and the whole's segment, however few rows a piece has.
TEST(FlatLayout, NamesElementsOfAPieceByTheWholeParameter) {
  ParamSpec whole = make_parameter("table", {700, 32});
  std::vector<bool> seen(static_cast<size_t>(whole.elements()), false);
  for (const int64_t first : {0, 320, 640}) {
    ParamSpec piece = whole;
    piece.shape[0] = std::min<int64_t>(320, 700 - first);
    piece.first_row = first;
    piece.whole_rows = 700;
    EXPECT_EQ(piece.whole(), whole);
    UnitSpec unit;
    unit.parameters = {make_parameter("norm", {32}), piece};
    const FlatLayout layout(unit, 2, DType::kBF16);
    EXPECT_EQ(layout.parameter_segment(1), Segment::kQuantisedMoments);
    for (const Rank rank : {Rank(0), Rank(1)}) {
      for (const ShardPiece& part : layout.trained_pieces(rank)) {
        if (part.parameter == 0) continue;
        EXPECT_GE(part.parameter_begin, piece.first_element());
        for (int64_t i = 0; i < part.elements; ++i) {
          const auto element = static_cast<size_t>(part.parameter_begin + i);
          ASSERT_FALSE(seen.at(element));
          seen[element] = true;
        }
      }
    }
  }
  EXPECT_EQ(std::ranges::count(seen, false), 0);
}

}  // namespace
}  // namespace longshore
