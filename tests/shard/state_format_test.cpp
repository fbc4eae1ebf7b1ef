// Bytes of every state format, their offsets in slabs, and values through a format and back.
#include "shard/state_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <random>

#include "base/errors.h"
#include "base/number_formats.h"
#include "shard/shard_store.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

std::vector<StateOptions> all_options() {
  std::vector<StateOptions> all;
  for (const StateFormatTraits& traits : kStateFormats) {
    for (DType compute : {DType::kF32, DType::kBF16}) {
      for (DType drain : {DType::kF32, DType::kBF16})
        all.push_back({traits.format, compute, drain});
    }
  }
  return all;
}

// Returns the bytes of a block of 256 elements.
Bytes state_bytes(const StateOptions& options, Segment segment) {
  UnitSpec unit;
  unit.parameters = {fakes::make_parameter("frozen", {kBlockElements}, true)};
  const SlabLayout frozen(FlatLayout(unit, 1, options.compute), options);
  Bytes sum = 0;
  for (const Region region : regions_of(options)) {
    sum += segment == Segment::kFrozen ? frozen.bytes(region, segment)
                                       : region_bytes(options, segment, region, kBlockElements);
  }
  return sum;
}

// Every format has the designed bytes per element.
TEST(StateFormat, TakesTheBytesThatTheDesignSays) {
  const Segment matrices = Segment::kQuantisedMoments;
  const auto bytes = [](StateFormat format, DType compute, Segment segment) {
    return state_bytes({format, compute, compute}, segment);
  };
  EXPECT_EQ(bytes(StateFormat::kFp32, DType::kBF16, matrices), 14 * kBlockElements);
  EXPECT_EQ(bytes(StateFormat::kSplit, DType::kBF16, matrices), 12 * kBlockElements);
  EXPECT_EQ(bytes(StateFormat::kSplitBf16, DType::kBF16, matrices), 8 * kBlockElements);
  // Each 128 elements have two fp32 units.
  EXPECT_EQ(bytes(StateFormat::kSplitInt8, DType::kBF16, matrices), 6 * kBlockElements + 16);
  EXPECT_EQ(bytes(StateFormat::kFp32, DType::kF32, matrices), 12 * kBlockElements);
  EXPECT_EQ(bytes(StateFormat::kSplit, DType::kF32, matrices), 12 * kBlockElements);
  for (const StateOptions& options : all_options()) {
    EXPECT_EQ(state_bytes(options, Segment::kFrozen), width_of(options.compute) * kBlockElements);
    const StateOptions exact = {
        splits_master(options.format) ? StateFormat::kSplit : StateFormat::kFp32, options.compute,
        options.drain};
    EXPECT_EQ(state_bytes(options, Segment::kFullMoments),
              state_bytes(exact, Segment::kFullMoments))
        << "small parameters keep fp32 moments";
  }
}

// The format proposed to a run that is too large takes fewer bytes than its own.
TEST(StateFormat, IsFollowedByTheNextThatTakesLess) {
  const auto bytes = [](StateFormat format) {
    return state_bytes({format, DType::kBF16, DType::kBF16}, Segment::kQuantisedMoments);
  };
  EXPECT_EQ(narrower_than(StateFormat::kFp32), StateFormat::kSplit);
  EXPECT_EQ(narrower_than(StateFormat::kSplitInt8), std::nullopt);
  for (const StateFormatTraits& traits : kStateFormats) {
    const std::optional<StateFormat> next = narrower_than(traits.format);
    if (next) {
      EXPECT_LT(bytes(*next), bytes(traits.format)) << traits.name;
    }
  }
}

// The names of formats read back.
TEST(StateFormat, HasNamesThatAreReadBack) {
  for (const StateFormatTraits& traits : kStateFormats) {
    EXPECT_EQ(parse_state_format(traits.name), traits.format);
  }
  EXPECT_EQ(parse_state_format("fp16"), std::nullopt);
}

// The parameter in the device layout is contiguous unless it must be joined.
TEST(StateFormat, HoldsTheParameterOfTheDeviceContiguouslyUnlessItMustBeJoined) {
  for (const StateOptions& options : all_options()) {
    if (needs_join(options)) continue;
    const Region home = options.compute == DType::kF32 ? Region::kMaster : Region::kHigh;
    for (Segment segment : {Segment::kQuantisedMoments, Segment::kFullMoments}) {
      EXPECT_EQ(region_bytes(options, segment, home, 1), width_of(options.compute));
    }
    EXPECT_EQ(frozen_region(options), home);
  }
}

// AdamW's two regions lie where they lay before rules had lists, and another rule's take the bytes
// of its own list.
TEST(StateFormat, HasTheRegionsOfTheRule) {
  const std::vector<Region> adamw = {
      Region::kMaster,      Region::kHigh,        Region::kLow,        {Region::kValues, 0},
      {Region::kValues, 1}, {Region::kScales, 0}, {Region::kScales, 1}};
  EXPECT_EQ(regions_of({}), adamw);
  constexpr std::array<StateRegion, 2> kOther = {
      {{"exact", Moment::kFirst, MomentFormat::kF32}, {"narrow"}}};
  StateOptions options = {.format = StateFormat::kSplitInt8, .regions = kOther};
  const Segment matrices = Segment::kQuantisedMoments;
  EXPECT_EQ(moment_format(options, matrices, 0), MomentFormat::kF32);
  EXPECT_EQ(moment_format(options, matrices, 1), MomentFormat::kInt8);
  EXPECT_EQ(state_bytes(options, matrices), (4 + 4 + 1) * kBlockElements + 8);
  options.regions = {};
  EXPECT_EQ(state_bytes(options, matrices), 4 * kBlockElements);
}

// The regions of a slab lie end to end, and the slab is rounded up to pages.
TEST(SlabLayout, PutsRegionsEndToEndAndRoundsToPages) {
  UnitSpec unit;
  unit.parameters = {fakes::make_parameter("a", {100, 100}), fakes::make_parameter("b", {77}),
                     fakes::make_parameter("c", {64, 65}, true)};
  for (int factor : {1, 3}) {
    for (const StateOptions& options : all_options()) {
      const FlatLayout layout(unit, factor, options.compute);
      const SlabLayout slab(layout, options);
      Bytes cursor = 0;
      for (const Region region : regions_of(options)) {
        Bytes sum = 0;
        for (Segment segment : kSegments) {
          EXPECT_EQ(slab.offset(region, segment), cursor);
          if (segment == Segment::kFrozen) {
            const bool holds = region == frozen_region(options);
            EXPECT_EQ(slab.bytes(region, segment), holds ? layout.shard_bytes(segment) : 0);
          } else {
            EXPECT_EQ(slab.bytes(region, segment),
                      region_bytes(options, segment, region, layout.shard_elements(segment)));
          }
          cursor += slab.bytes(region, segment);
          sum += slab.bytes(region, segment);
        }
        EXPECT_EQ(slab.region_bytes(region), sum);
      }
      EXPECT_EQ(slab.slab_bytes(), align_up(cursor, 4096));
    }
  }
}

// Returns values that rounding could lose: ties, carries, infinities, NaN, denormals, random.
std::vector<float> awkward_values() {
  std::vector<float> values;
  for (uint32_t bits : {0x00000000u, 0x80000000u, 0x3f808000u, 0x3f7f8000u, 0x3f7fffffu,
                        0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7fffffffu,
                        0x00000001u, 0x807fffffu, 0xffffffffu, 0x00008000u, 0x00007fffu}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  std::mt19937 random(7);
  while (values.size() < 2000) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  return values;
}

void expect_same_bits(std::span<const float> a, std::span<const float> b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << i;
  }
}

// Values come back bit for bit from any form of master.
TEST(StateValues, ComeBackBitForBitFromAnyMaster) {
  const std::vector<float> values = awkward_values();
  std::vector<float> master(values.size() + 10);
  std::vector<uint16_t> high(master.size());
  std::vector<uint16_t> low(master.size());
  std::vector<uint16_t> parameter(master.size());
  std::vector<float> read(values.size());
  StateSpans fp32;
  fp32.master = master;
  fp32.high = parameter;
  StateSpans split;
  split.high = high;
  split.low = low;
  for (const StateSpans& state : {fp32, split}) {
    write_values(state, 10, values);
    std::ranges::fill(read, 0.0f);
    read_values(state, 10, read);
    expect_same_bits(read, values);
  }
  EXPECT_EQ(parameter, high) << "both formats give the device the same bf16 parameter";
}

// bf16 values of frozen segments are kept exactly.
TEST(StateValues, KeepBf16ValuesOfFrozenSegmentsExactly) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; bits += 3) {
    values.push_back(bf16_to_float(static_cast<uint16_t>(bits)));
  }
  std::vector<std::byte> frozen(2 * values.size());
  std::vector<float> read(values.size());
  store_numbers(StorageType::kBF16, values, frozen);
  load_numbers(StorageType::kBF16, frozen, read);
  expect_same_bits(read, values);
}

// A range beyond the segment is refused.
TEST(StateValues, RefuseARangeBeyondTheSegment) {
  std::vector<uint16_t> high(10);
  std::vector<float> values(4);
  StateSpans state;
  state.high = high;
  EXPECT_THROW(write_values(state, 7, values), CheckFailure);
  EXPECT_THROW(read_values(state, -1, values), CheckFailure);
  EXPECT_THROW(read_values(state, 11, std::span(values).first(0)), CheckFailure);
}

}  // namespace
}  // namespace longshore
