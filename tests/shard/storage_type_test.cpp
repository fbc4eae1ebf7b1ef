// Storage types: the bytes of each, of a unit that has several, and values that stay fp32 in a bf16
// run, from loading to reading back, whatever the number of ranks.
#include "shard/storage_type.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "base/errors.h"
#include "shard/flat_layout.h"
#include "shard/load_parameters.h"
#include "shard/shard_store.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

constexpr int64_t kValues = 700;
constexpr StateOptions kOptions{.compute = DType::kBF16};

ModelSpec model_of_unit(std::vector<ParamSpec> parameters) {
  UnitSpec unit;
  unit.id = UnitId(0);
  unit.name = "block";
  unit.parameters = std::move(parameters);
  ModelSpec model{.units = {unit}};
  validate_model_spec(model);
  return model;
}

ModelSpec model_with_fp32() {
  ParamSpec correction = fakes::make_parameter("correction", {kValues}, true);
  const ParamSpec frozen = fakes::make_parameter("frozen", {5}, true);
  ParamSpec trained = fakes::make_parameter("trained", {7});
  correction.stays_fp32 = trained.stays_fp32 = true;
  return model_of_unit({correction, frozen, trained});
}

ParamSpec packed(const std::string& name, std::vector<int64_t> shape, StorageType type) {
  ParamSpec parameter = fakes::make_parameter(name, std::move(shape), true);
  parameter.stacked = parameter.shape.size() == 3;
  parameter.packed = type;
  return parameter;
}

// A unit with parameters of every kind.
ModelSpec mixed_model() {
  ParamSpec kept = fakes::make_parameter("kept", {300}, true);
  kept.stays_fp32 = true;
  return model_of_unit(
      {fakes::make_parameter("number", {100, 3}, true), kept,
       packed("nf4", {130, 70}, StorageType::kNf4), fakes::make_parameter("trained", {64, 64}),
       packed("fp8", {130, 70}, StorageType::kFp8Blocks),
       packed("experts", {3, 64, 32}, StorageType::kMxfp4), fakes::make_parameter("norm", {64})});
}

// In bf16 many of these values are equal.
float value_of(int64_t i) {
  return 64.0F + 1e-4F * static_cast<float>(i);
}

// The state of one unit's shard in memory.
class MemoryLease : public ShardStore::StateLease {
 public:
  explicit MemoryLease(const FlatLayout& layout) {
    for (const Segment segment : {Segment::kQuantisedMoments, Segment::kFullMoments}) {
      const auto elements = static_cast<size_t>(layout.shard_elements(segment));
      high_[segment].resize(elements);
      low_[segment].resize(elements);
    }
    frozen_.resize(static_cast<size_t>(layout.shard_bytes(Segment::kFrozen)));
  }
  StateSpans segment(Segment segment) override {
    StateSpans spans;
    if (segment == Segment::kFrozen) {
      spans.frozen = frozen_;
      return spans;
    }
    spans.high = high_[segment];
    spans.low = low_[segment];
    return spans;
  }

 private:
  std::map<Segment, std::vector<uint16_t>> high_, low_;
  std::vector<std::byte> frozen_;
};

// Goal: the bytes of each type, as its format lays them out; scales are counted, and the last
// blocks of a matrix may be smaller.
TEST(StorageType, HasTheBytesOfItsFormat) {
  const std::vector<int64_t> shape = {130, 70}, experts = {64, 32};
  EXPECT_EQ(stored_bytes(StorageType::kF32, shape), 4 * 9100);
  EXPECT_EQ(stored_bytes(StorageType::kBF16, shape), 2 * 9100);
  EXPECT_EQ(stored_bytes(StorageType::kBF16, {}), 2) << "a scalar";
  // The mean, one group's largest, 143 codes of scales, padding, and two values a byte, padded.
  EXPECT_EQ(stored_bytes(StorageType::kNf4, shape), 4 + 4 + 143 + 9 + 4550 + 2);
  // Two scales, padding, and codes.
  EXPECT_EQ(stored_bytes(StorageType::kFp8Blocks, shape), 8 + 8 + 9100);
  // Two values a byte, then an exponent for each 32.
  EXPECT_EQ(stored_bytes(StorageType::kMxfp4, experts), 1024 + 64);
  // 143 scales in fp32, padding, and two values a byte, padded.
  EXPECT_EQ(stored_bytes(StorageType::kNf4F32, shape), 4 * 143 + 4 + 4550 + 2);
  EXPECT_EQ(block_of(StorageType::kFp8Blocks), StorageBlock(128, 128));
  for (const StorageType type : {StorageType::kF32, StorageType::kBF16}) {
    EXPECT_FALSE(is_packed(type));
    EXPECT_EQ(storage_of(number_of(type)), type);
    EXPECT_THROW(packing_of(type), CheckFailure);
  }
  for (const StorageType type :
       {StorageType::kNf4, StorageType::kFp8Blocks, StorageType::kMxfp4, StorageType::kNf4F32}) {
    EXPECT_TRUE(is_packed(type));
    EXPECT_EQ(storage_of(packing_of(type)), type);
    EXPECT_THROW(number_of(type), CheckFailure);
  }
  EXPECT_THROW(storage_of(DType::kF16), CheckFailure) << "no run computes in it";
}

// Goal: only frozen parameters of a bf16 run stay fp32, and layouts have their bytes.
TEST(StorageType, IsFp32OfAFrozenValueThatStaysSo) {
  const ModelSpec model = model_with_fp32();
  const std::vector<ParamSpec>& parameters = model.units[0].parameters;
  EXPECT_EQ(parameters[0].elements(), kValues);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(parameters[0].storage(compute), StorageType::kF32);
    EXPECT_EQ(parameters[1].storage(compute), storage_of(compute));
    EXPECT_EQ(parameters[2].storage(compute), storage_of(compute)) << "it is trained";
    EXPECT_EQ(FlatLayout(model.units[0], 1, compute).parameter_bytes(0).bytes, 4 * kValues);
  }
  EXPECT_EQ(model.parameter_elements(), kValues + 5 + 7);
}

// Goal: only frozen matrices may be packed, and only in a packed type.
TEST(StorageType, IsPackedOnlyOfFrozenMatrices) {
  ParamSpec trained = packed("w", {64, 64}, StorageType::kNf4);
  trained.frozen = false;
  EXPECT_THROW(model_of_unit({trained}), CheckFailure);
  EXPECT_THROW(model_of_unit({packed("w", {64}, StorageType::kNf4)}), CheckFailure);
  EXPECT_THROW(model_of_unit({packed("w", {64, 64}, StorageType::kF32)}), CheckFailure);
}

// Goal: every parameter of a unit with several types lies at the offset written here, in bytes.
TEST(StorageType, MayDifferBetweenParametersOfAUnit) {
  const ModelSpec model = mixed_model();
  const FlatLayout bf16(model.units[0], 1, DType::kBF16), fp32(model.units[0], 1, DType::kF32);
  // Frozen parameters begin at multiples of 512 bytes, behind 8192 + 512 of trained ones.
  const std::vector<ByteRange> in_bf16 = {
      {8704, 600},         {8704 + 1024, 1200},      {8704 + 2560, 4712}, {0, 8192},
      {8704 + 7680, 9116}, {8704 + 16896, 3 * 1536}, {8192, 128}};
  // In fp32 they begin at multiples of 1024, behind 16384 + 1024.
  const std::vector<ByteRange> in_fp32 = {
      {17408, 1200},        {17408 + 2048, 1200},      {17408 + 4096, 4712}, {0, 16384},
      {17408 + 9216, 9116}, {17408 + 18432, 3 * 2048}, {16384, 256}};
  for (int32_t i = 0; i < bf16.parameter_count(); ++i) {
    EXPECT_EQ(bf16.parameter_bytes(i), in_bf16[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(fp32.parameter_bytes(i), in_fp32[static_cast<size_t>(i)]) << i;
  }
  EXPECT_EQ(bf16.flat_bytes(), 8704 + 21504);
  EXPECT_EQ(fp32.flat_bytes(), 17408 + 24576);
  EXPECT_EQ(stored_matrices(model.units[0].parameters[5], DType::kBF16).bytes, 1088);
}

// Goal: over any number of ranks, the pieces are those written here, and tile every parameter.
TEST(StorageType, IsCutInPiecesOfBytes) {
  struct Expected {
    int32_t rank, parameter;
    Bytes parameter_begin, shard_begin, bytes;
    bool operator==(const Expected&) const = default;
  };
  const std::map<int32_t, std::vector<Expected>> expected = {{1,
                                                              {{0, 0, 0, 0, 600},
                                                               {0, 1, 0, 1024, 1200},
                                                               {0, 2, 0, 2560, 4712},
                                                               {0, 4, 0, 7680, 9116},
                                                               {0, 5, 0, 16896, 4608}}},
                                                             {2,  // a shard is 10752 bytes
                                                              {{0, 0, 0, 0, 600},
                                                               {0, 1, 0, 1024, 1200},
                                                               {0, 2, 0, 2560, 4712},
                                                               {0, 4, 0, 7680, 3072},
                                                               {1, 4, 3072, 0, 6044},
                                                               {1, 5, 0, 6144, 4608}}},
                                                             {3,  // a shard is 7168 bytes
                                                              {{0, 0, 0, 0, 600},
                                                               {0, 1, 0, 1024, 1200},
                                                               {0, 2, 0, 2560, 4608},
                                                               {1, 2, 4608, 0, 104},
                                                               {1, 4, 0, 512, 6656},
                                                               {2, 4, 6656, 0, 2460},
                                                               {2, 5, 0, 2560, 4608}}}};
  const ModelSpec model = mixed_model();
  for (const auto& [ranks, pieces] : expected) {
    const FlatLayout layout(model.units[0], ranks, DType::kBF16);
    std::vector<Expected> found;
    std::map<int32_t, Bytes> covered;
    int64_t trained = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      for (const FrozenPiece& piece : layout.frozen_pieces(Rank(rank))) {
        const auto index = static_cast<size_t>(piece.parameter);
        EXPECT_EQ(piece.type, model.units[0].parameters[index].storage(DType::kBF16));
        EXPECT_EQ(piece.parameter_begin, covered[piece.parameter]);
        covered[piece.parameter] += piece.bytes;
        found.push_back(
            {rank, piece.parameter, piece.parameter_begin, piece.shard_begin, piece.bytes});
      }
      for (const ShardPiece& piece : layout.trained_pieces(Rank(rank))) trained += piece.elements;
    }
    EXPECT_TRUE(found == pieces) << ranks << " ranks";
    for (const auto& [parameter, bytes] : covered) {
      EXPECT_EQ(bytes, layout.parameter_bytes(parameter).bytes) << parameter;
    }
    EXPECT_EQ(covered.size(), 5U);
    EXPECT_EQ(trained, 64 * 64 + 64);
  }
}

// Goal: a group of packed experts is counted from the first of all, each at the same distance.
TEST(StorageType, OfAGroupOfExpertsCountsFromTheWhole) {
  ParamSpec group = packed("experts", {2, 64, 32}, StorageType::kMxfp4);
  group.first_row = 3;
  group.whole_rows = 8;
  const FlatLayout layout(model_of_unit({group}).units[0], 1, DType::kBF16);
  ASSERT_EQ(layout.frozen_pieces(Rank(0)).size(), 1U);
  EXPECT_EQ(layout.frozen_pieces(Rank(0))[0].parameter_begin, 3 * 1536);
  EXPECT_EQ(layout.frozen_pieces(Rank(0))[0].bytes, 2 * 1536);
}

// Goal: packed bytes pass another reader than values do, once each, where ranks compare.
TEST(StorageType, IsReadAsBytesWhereItIsPacked) {
  const ModelSpec model = mixed_model();
  const std::vector<FlatLayout> layouts = make_layouts(model, 2, DType::kBF16);
  std::map<std::string, int64_t> values, bytes;
  for (const Rank rank : {Rank(0), Rank(1)}) {
    read_parameters(
        model, layouts, rank,
        [&](const std::string& name, int64_t begin, std::span<float> out) {
          EXPECT_EQ(begin, values[name]);
          values[name] += std::ssize(out);
        },
        [&](const std::string& name, Bytes begin, std::span<std::byte> out) {
          EXPECT_EQ(begin, bytes[name]);
          bytes[name] += std::ssize(out);
        });
  }
  EXPECT_EQ(values, (std::map<std::string, int64_t>{
                        {"number", 300}, {"kept", 300}, {"trained", 4096}, {"norm", 64}}));
  EXPECT_EQ(bytes,
            (std::map<std::string, int64_t>{{"nf4", 4712}, {"fp8", 9116}, {"experts", 4608}}));
}

// Goal: the ranks' shards, end to end, hold the values' bits in order, and read back as loaded.
TEST(StorageType, KeepsFp32BitsOverAnyNumberOfRanks) {
  const ModelSpec model = model_with_fp32();
  for (const int32_t ranks : {1, 2, 4}) {
    const std::vector<FlatLayout> layouts = make_layouts(model, ranks, DType::kBF16);
    std::vector<std::byte> gathered;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      MemoryLease lease(layouts[0]);
      const StateSweep sweep{
          .options = kOptions,
          .each = [&](const StateSweep::Visitor& visit) { visit(UnitId(0), lease); },
          .each_trained = {}};
      const ParameterReader read = [](const std::string& name, int64_t begin,
                                      std::span<float> out) {
        for (size_t i = 0; i < out.size(); ++i) {
          const int64_t at = begin + static_cast<int64_t>(i);
          out[i] = name == "correction" ? value_of(at) : 1.0F;
        }
      };
      load_parameters(sweep, model, layouts, Rank(rank), read);
      const StateSpans frozen = lease.segment(Segment::kFrozen);
      gathered.insert(gathered.end(), frozen.frozen.begin(), frozen.frozen.end());
      std::vector<float> back(1);
      load_numbers(StorageType::kF32, frozen.frozen.first(4), back);
      EXPECT_EQ(back[0] == value_of(0), rank == 0);
    }
    std::vector<float> values(kValues);
    std::memcpy(values.data(), gathered.data(), sizeof(float) * kValues);
    for (int64_t i = 0; i < kValues; ++i) {
      ASSERT_EQ(values[static_cast<size_t>(i)], value_of(i)) << i << " of " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace longshore
