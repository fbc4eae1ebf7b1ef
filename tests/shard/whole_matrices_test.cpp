// Layouts that keep matrices whole: what a matrix of a parameter is, and which rank has it.
#include "shard/whole_matrices.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>

#include "base/bytes.h"
#include "base/errors.h"
#include "shard/flat_layout.h"
#include "shard/state_format.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

using fakes::make_parameter;

ParamSpec matrices(std::string name, std::vector<int64_t> shape, std::vector<int64_t> outputs = {},
                   bool stacked = false) {
  ParamSpec parameter = make_parameter(std::move(name), std::move(shape));
  parameter.matrices.outputs = std::move(outputs);
  parameter.stacked = stacked;
  parameter.whole_matrices = true;
  return parameter;
}

UnitSpec unit_of(std::vector<ParamSpec> parameters) {
  UnitSpec unit;
  unit.name = "unit";
  unit.parameters = std::move(parameters);
  return unit;
}

// Returns the elements of a matrix, row by row.
std::vector<int64_t> elements_of(const MatrixPlace& place) {
  std::vector<int64_t> elements;
  for (int64_t row = 0; row < place.rows; ++row) {
    for (int64_t column = 0; column < place.columns; ++column) {
      elements.push_back(place.element(row, column));
    }
  }
  return elements;
}

std::vector<std::vector<int64_t>> all_elements(const ParamSpec& parameter) {
  std::vector<std::vector<int64_t>> all;
  for (const MatrixPlace& place : parameter.matrix_places()) all.push_back(elements_of(place));
  return all;
}

using Lists = std::vector<std::vector<int64_t>>;

// A matrix is what the mathematics means, however the parameter stores it.
TEST(WholeMatrices, MatricesOfAParameterByHand) {
  EXPECT_EQ(all_elements(matrices("one", {2, 3})), (Lists{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(all_elements(matrices("fused", {3, 2}, {2, 1})), (Lists{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_EQ(all_elements(matrices("alternating", {4, 2}, {1, 1})),
            (Lists{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(all_elements(matrices("stack", {2, 2, 2}, {1, 1}, true)),
            (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  ParamSpec turned = matrices("transposed", {2, 6}, {2, 1});
  turned.matrices.transposed = true;
  EXPECT_EQ(all_elements(turned), (Lists{{0, 6, 1, 7, 3, 9, 4, 10}, {2, 8, 5, 11}}));
  ParamSpec table = matrices("table", {4, 2});
  table.matrices.none = true;
  EXPECT_EQ(all_elements(table), Lists());
  EXPECT_EQ(all_elements(matrices("vector", {4})), Lists());
  EXPECT_EQ(all_elements(matrices("taps", {4, 1, 3})), Lists());
  EXPECT_EQ(all_elements(matrices("biases", {2, 4}, {}, true)), Lists());
}

struct Piece {
  int32_t parameter;
  int64_t begin, elements, place;
  bool operator==(const Piece&) const = default;
};

std::vector<std::vector<Piece>> pieces_of(const FlatLayout& layout) {
  std::vector<std::vector<Piece>> ranks;
  for (int32_t rank = 0; rank < layout.shard_factor(); ++rank) {
    std::vector<Piece>& pieces = ranks.emplace_back();
    for (const ShardPiece& piece : layout.trained_pieces(Rank(rank))) {
      EXPECT_EQ(piece.segment, Segment::kWholeMatrices);
      pieces.push_back({piece.parameter, piece.parameter_begin, piece.elements, piece.shard_begin});
    }
  }
  return ranks;
}

using Pieces = std::vector<std::vector<Piece>>;

// Separate matrices go to ranks in order; a rank may have none.
TEST(WholeMatrices, SeparateMatricesByHand) {
  const UnitSpec unit =
      unit_of({matrices("q", {16, 64}), matrices("k", {8, 64}), matrices("up", {24, 64})});
  const FlatLayout one(unit, 1, DType::kF32), two(unit, 2, DType::kF32),
      three(unit, 3, DType::kF32);
  EXPECT_EQ(pieces_of(one), (Pieces{{{0, 0, 1024, 0}, {1, 0, 512, 1024}, {2, 0, 1536, 1536}}}));
  EXPECT_EQ(pieces_of(two), (Pieces{{{0, 0, 1024, 0}, {1, 0, 512, 1024}}, {{2, 0, 1536, 0}}}));
  EXPECT_EQ(pieces_of(three),
            (Pieces{{{0, 0, 1024, 0}, {1, 0, 512, 1024}}, {{2, 0, 1536, 0}}, {}}));
  EXPECT_EQ(one.whole_matrix_padding(), 0);
  EXPECT_EQ(two.whole_matrix_padding(), 0);
  EXPECT_EQ(three.whole_matrix_padding(), 512);
  EXPECT_EQ(three.flat_bytes(), 3 * 1536 * 4);
}

// A fused parameter stays contiguous and is cut between its matrices.
TEST(WholeMatrices, AFusedParameterByHand) {
  const UnitSpec unit = unit_of({matrices("qkv", {32, 64}, {16, 8, 8}), matrices("down", {8, 64})});
  const FlatLayout two(unit, 2, DType::kBF16), three(unit, 3, DType::kBF16);
  EXPECT_EQ(pieces_of(two), (Pieces{{{0, 0, 1536, 0}}, {{0, 1536, 512, 0}, {1, 0, 512, 512}}}));
  EXPECT_EQ(two.whole_matrix_padding(), 256);
  EXPECT_EQ(pieces_of(three), (Pieces{{{0, 0, 1024, 0}}, {{0, 1024, 1024, 0}}, {{1, 0, 512, 0}}}));
}

// A parameter may begin behind the next shard's edge, where shards as small as its largest matrix
// allow it and no place before does.
TEST(WholeMatrices, APlaceBehindTheNextEdgeByHand) {
  const UnitSpec unit = unit_of({matrices("q", {20, 64}), matrices("up", {80, 64}, {24, 40, 16})});
  const FlatLayout four(unit, 4, DType::kF32);
  EXPECT_EQ(four.shard_elements(Segment::kWholeMatrices), 2560);
  EXPECT_EQ(
      pieces_of(four),
      (Pieces{
          {{0, 0, 1280, 0}}, {{1, 0, 1536, 1024}}, {{1, 1536, 2560, 0}}, {{1, 4096, 1024, 0}}}));
  EXPECT_EQ(four.whole_matrix_padding(), 960);
}

// The experts of a stack are shared out; a middle rank's shard is full of them.
TEST(WholeMatrices, AStackOfExpertsByHand) {
  const UnitSpec unit = unit_of({matrices("experts", {4, 8, 64}, {}, true)});
  EXPECT_EQ(pieces_of(FlatLayout(unit, 2, DType::kF32)),
            (Pieces{{{0, 0, 1024, 0}}, {{0, 1024, 1024, 0}}}));
  const FlatLayout three(unit, 3, DType::kF32);
  EXPECT_EQ(pieces_of(three), (Pieces{{{0, 0, 1024, 0}}, {{0, 1024, 1024, 0}}, {}}));
  EXPECT_EQ(three.shard_elements(Segment::kWholeMatrices), 1024);
  const UnitSpec norm =
      unit_of({matrices("before", {4, 64}), matrices("experts", {4, 8, 64}, {}, true)});
  const FlatLayout behind(norm, 2, DType::kF32);
  EXPECT_EQ(pieces_of(behind), (Pieces{{{0, 0, 256, 0}, {1, 0, 1024, 256}}, {{1, 1024, 1024, 0}}}));
  EXPECT_EQ(behind.whole_matrix_padding(), 128);
}

// Over random units each matrix is on one rank, shards are equal, parameters do not overlap, and
// parameters that are updated by elements stay where they are.
TEST(WholeMatrices, EveryMatrixIsOnOneRank) {
  std::mt19937 random(7);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 60; ++i) {
    std::vector<ParamSpec> parameters = {make_parameter("norm", {draw(1, 400)}),
                                         make_parameter("by_elements", {70, draw(1, 90)})};
    const size_t others = parameters.size();
    const FlatLayout alone(unit_of(parameters), 3, DType::kF32);
    for (int64_t count = draw(1, 9); count > 0; --count) {
      const int64_t rows = draw(1, 40), columns = draw(1, 4) * (i % 2 == 0 ? 64 : 37);
      switch (draw(0, 2)) {
        case 0:
          parameters.push_back(matrices("m", {rows, columns}));
          break;
        case 1:
          parameters.push_back(matrices("m", {3 * rows, columns}, {rows, 2 * rows}));
          break;
        default: {
          const int64_t turn = draw(0, 1) == 0 ? 1 : rows;
          parameters.push_back(matrices("m", {draw(1, 16), 2 * rows, columns}, {turn, turn}, true));
        }
      }
    }
    const UnitSpec unit = unit_of(parameters);
    for (const int32_t ranks : {1, 2, 3, 7}) {
      const FlatLayout layout(unit, ranks, DType::kF32);
      std::vector<int64_t> held(parameters.size());
      for (int32_t rank = 0; rank < ranks; ++rank) {
        for (const ShardPiece& piece : layout.trained_pieces(Rank(rank))) {
          const auto index = static_cast<size_t>(piece.parameter);
          ASSERT_EQ(piece.parameter_begin, held[index]);
          held[index] += piece.elements;
          ASSERT_LE(piece.shard_begin + piece.elements, layout.shard_elements(piece.segment));
          if (index < others) continue;
          for (const MatrixPlace& place : parameters[index].matrix_places()) {
            const bool inside = place.first >= piece.parameter_begin && place.end() <= held[index];
            const bool outside = place.end() <= piece.parameter_begin || place.first >= held[index];
            ASSERT_TRUE(inside || outside) << i << " " << ranks << " " << index;
          }
        }
      }
      std::set<int64_t> begins;
      for (size_t p = 0; p < parameters.size(); ++p) {
        ASSERT_EQ(held[p], parameters[p].elements());
        const ElementRange range = layout.parameter(static_cast<int32_t>(p));
        ASSERT_EQ(range.begin % kBlockElements, 0);
        ASSERT_TRUE(begins.insert(range.begin).second);
        ASSERT_LE(range.end(), layout.trainable_elements());
        if (p >= others || ranks != 3) continue;
        ASSERT_EQ(range, alone.parameter(static_cast<int32_t>(p)));
      }
      int64_t padding = layout.segment(Segment::kWholeMatrices).elements;
      for (size_t p = others; p < parameters.size(); ++p) {
        padding -= align_up(parameters[p].elements(), kBlockElements);
      }
      ASSERT_EQ(layout.whole_matrix_padding(), padding / ranks);
    }
  }
}

// A region may be kept beside whole matrices alone, or beside all other parameters.
TEST(WholeMatrices, RegionsMayBelongToOneGrain) {
  constexpr std::array<StateRegion, 3> kRegions = {
      {{"all", Moment::kFirst},
       {"elements", Moment::kFirst, {}, RegionUse::kElements},
       {"matrices", Moment::kFirst, {}, RegionUse::kMatrices}}};
  const StateOptions options = {StateFormat::kSplitInt8, DType::kBF16, DType::kBF16, kRegions};
  const auto bytes = [&](Segment segment, size_t region) {
    return region_bytes(options, segment, {Region::kValues, region}, 512) +
           region_bytes(options, segment, {Region::kScales, region}, 512);
  };
  EXPECT_EQ(bytes(Segment::kQuantisedMoments, 0), 512 + 16);
  EXPECT_EQ(bytes(Segment::kQuantisedMoments, 1), 512 + 16);
  EXPECT_EQ(bytes(Segment::kQuantisedMoments, 2), 0);
  EXPECT_EQ(bytes(Segment::kFullMoments, 1), 2048);
  EXPECT_EQ(bytes(Segment::kFullMoments, 2), 0);
  EXPECT_EQ(bytes(Segment::kWholeMatrices, 0), 2048);
  EXPECT_EQ(bytes(Segment::kWholeMatrices, 1), 0);
  EXPECT_EQ(bytes(Segment::kWholeMatrices, 2), 2048);
}

// Units that cut a matrix into rows are refused; those that cut a stack between experts are not.
TEST(WholeMatrices, UnitsThatCutMatricesAreRefused) {
  ParamSpec piece = matrices("m", {8, 64});
  piece.whole_rows = 16;
  EXPECT_THROW(check_whole_matrices(piece), ConfigError);
  piece.whole_matrices = false;
  check_whole_matrices(piece);
  ParamSpec experts = matrices("experts", {2, 8, 64}, {}, true);
  experts.whole_rows = 4;
  check_whole_matrices(experts);
}

}  // namespace
}  // namespace longshore
