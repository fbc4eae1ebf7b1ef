// Parameters in halves: two elements of bf16 hold the bits of one fp32 value, in layouts, and from
// loading to reading back, whatever the number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "shard/flat_layout.h"
#include "shard/load_parameters.h"
#include "shard/shard_store.h"

namespace longshore {
namespace {

constexpr int64_t kValues = 700;
constexpr StateOptions kOptions{.compute = DType::kBF16};

ModelSpec model_of(DType compute) {
  ParamSpec correction, frozen, trained;
  correction.name = "correction", correction.shape = {kValues};
  frozen.name = "frozen", frozen.shape = {5};
  trained.name = "trained", trained.shape = {7};
  correction.frozen = frozen.frozen = true;
  correction.stays_fp32 = trained.stays_fp32 = true;
  UnitSpec unit;
  unit.id = UnitId(0);
  unit.name = "block";
  unit.parameters = {correction, frozen, trained};
  return store_in_halves({.units = {unit}}, compute);
}

// In bf16 many of these values are equal.
float value_of(int64_t i) {
  return 64.0F + 1e-4F * static_cast<float>(i);
}

// The state of one unit's shard in memory.
class MemoryLease : public ShardStore::StateLease {
 public:
  explicit MemoryLease(const FlatLayout& layout) {
    for (const Segment segment : kSegments) {
      const auto elements = static_cast<size_t>(layout.shard_elements(segment));
      high_[segment].resize(elements);
      if (segment != Segment::kFrozen) low_[segment].resize(elements);
    }
  }
  StateSpans segment(Segment segment) override {
    StateSpans spans;
    spans.high = high_[segment];
    spans.low = low_[segment];
    return spans;
  }

 private:
  std::map<Segment, std::vector<uint16_t>> high_, low_;
};

// Goal: only frozen parameters of a bf16 run are in halves, and layouts have their elements.
TEST(Halves, AreTwoElementsOfAFrozenValueInBf16) {
  validate_model_spec(model_of(DType::kBF16));
  const ModelSpec bf16 = model_of(DType::kBF16), fp32 = model_of(DType::kF32);
  EXPECT_EQ(bf16.units[0].parameters[0].elements(), 2 * kValues);
  EXPECT_EQ(bf16.units[0].parameters[0].values(), kValues);
  EXPECT_EQ(fp32.units[0].parameters[0].elements(), kValues);
  EXPECT_FALSE(bf16.units[0].parameters[1].in_halves);
  EXPECT_FALSE(bf16.units[0].parameters[2].in_halves) << "it is trained";
  EXPECT_EQ(bf16.parameter_elements(), fp32.parameter_elements());
  EXPECT_EQ(FlatLayout(bf16.units[0], 1).parameter(0).elements, 2 * kValues);
}

// Goal: the ranks' shards, end to end, hold the values' bits in order, and read back as loaded.
TEST(Halves, KeepTheBitsOverAnyNumberOfRanks) {
  const ModelSpec model = model_of(DType::kBF16);
  for (const int32_t ranks : {1, 2, 4}) {
    const std::vector<FlatLayout> layouts = make_layouts(model, ranks);
    std::vector<uint16_t> gathered;
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
      gathered.insert(gathered.end(), frozen.high.begin(), frozen.high.end());
      std::vector<float> back(1);
      read_halves(frozen, 0, back);
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
