// Every collective gives the bits of a serial reference, at several numbers of ranks.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/number_formats.h"
#include "comm/operations/operation.h"
#include "tests/comm/rank_threads.h"

namespace longshore {
namespace {

const OpLabel kLabel{"gradients", UnitId(3)};

// Returns values whose sum depends on the order of additions.
std::vector<float> values_of(int32_t rank, size_t count, uint32_t seed) {
  std::mt19937 random(seed * 1000 + static_cast<uint32_t>(rank));
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 20) - 30);
  }
  return values;
}

// Sums in rank order after the cast to the wire's type; with one rank nothing is cast.
std::vector<float> reference_sum(int32_t size, size_t count, uint32_t seed, DType wire) {
  std::vector<float> sum(count);
  for (int32_t rank = 0; rank < size; ++rank) {
    const std::vector<float> values = values_of(rank, count, seed);
    for (size_t i = 0; i < count; ++i) {
      const float value = wire == DType::kF32 || size == 1
                              ? values[i]
                              : bf16_to_float(float_to_bf16_nearest(values[i]));
      sum[i] = rank == 0 ? value : sum[i] + value;
    }
  }
  return sum;
}

std::vector<std::byte> scratch_for(size_t elements, DType wire, int32_t size) {
  return std::vector<std::byte>(
      static_cast<size_t>(reduce_scratch_bytes(static_cast<int64_t>(elements), wire, size)));
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::vector<float> joined(const std::vector<std::vector<float>>& parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<std::vector<float>> split(const std::vector<float>& all,
                                      const std::vector<size_t>& lengths) {
  std::vector<std::vector<float>> parts;
  size_t at = 0;
  for (const size_t length : lengths) {
    parts.emplace_back(all.begin() + static_cast<int64_t>(at),
                       all.begin() + static_cast<int64_t>(at + length));
    at += length;
  }
  return parts;
}

Communicator::FloatSegments spans_of(std::vector<std::vector<float>>& parts) {
  return {parts.begin(), parts.end()};
}

class Collectives : public testing::TestWithParam<int32_t> {};

void check_reduce_scatter(Communicator& all, const std::vector<size_t>& lengths, DType wire,
                          uint32_t seed) {
  size_t count = 0;
  for (const size_t length : lengths) count += length;
  auto segments = split(values_of(all.index(), count, seed), lengths);
  auto scratch = scratch_for(count, wire, all.size());
  all.reduce_scatter(spans_of(segments), wire, scratch, kLabel).wait();
  const auto expected = split(reference_sum(all.size(), count, seed, wire), lengths);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t part = lengths[i] / static_cast<size_t>(all.size());
    const size_t begin = part * static_cast<size_t>(all.index());
    EXPECT_TRUE(same_bits(std::span(segments[i]).subspan(begin, part),
                          std::span(expected[i]).subspan(begin, part)))
        << "segment " << i << " of " << lengths[i] << " on rank " << all.index();
  }
}

void check_all_reduce(Communicator& all, const std::vector<size_t>& lengths, DType wire,
                      uint32_t seed) {
  size_t count = 0;
  for (const size_t length : lengths) count += length;
  auto segments = split(values_of(all.index(), count, seed), lengths);
  auto scratch = scratch_for(count, wire, all.size());
  all.all_reduce(spans_of(segments), wire, scratch, kLabel).wait();
  EXPECT_TRUE(same_bits(joined(segments), reference_sum(all.size(), count, seed, wire)))
      << count << " elements on rank " << all.index();
}

// Goal: an in-place all-gather gives the parts of all ranks to every rank, in segments of any size.
TEST_P(Collectives, AllGatherGivesEveryPartToAll) {
  run_ranks(GetParam(), [](World& world) {
    Communicator& all = world.all();
    const auto size = static_cast<size_t>(all.size());
    for (const size_t part : {0u, 1u, 3u, 1000u, 300'000u}) {
      std::vector<std::vector<std::byte>> segments(3, std::vector<std::byte>(part * size));
      for (size_t s = 0; s < 3; ++s) {
        std::fill_n(segments[s].begin() + static_cast<int64_t>(part) * all.index(), part,
                    std::byte(all.index() * 3 + s + 1));
      }
      all.all_gather({segments.begin(), segments.end()}, kLabel).wait();
      for (size_t i = 0; i < part * size; ++i) {
        for (size_t s = 0; s < 3; ++s) {
          ASSERT_EQ(segments[s][i], std::byte(i / part * 3 + s + 1)) << part << " " << i;
        }
      }
    }
  });
}

// Goal: reduce-scatter adds in rank order, bit for bit, over both wire types and several rounds.
TEST_P(Collectives, ReduceScatterAddsInTheOrderOfRanks) {
  run_ranks(GetParam(), [](World& world) {
    Communicator& all = world.all();
    const auto size = static_cast<size_t>(all.size());
    uint32_t seed = 1;
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      check_reduce_scatter(all, {0}, wire, seed++);
      check_reduce_scatter(all, {size}, wire, seed++);
      check_reduce_scatter(all, {7 * size, 0, size, 5000 * size}, wire, seed++);
    }
    if (size > 4) return;
    const size_t rounds = 2 * kRoundElements + 12'345;  // of a part: three rounds
    check_reduce_scatter(all, {rounds * size, 77 * size}, DType::kF32, seed++);
    check_reduce_scatter(all, {77 * size, rounds * size}, DType::kBF16, seed++);
  });
}

// Goal: all-reduce adds in rank order at any size, also with fewer elements than ranks.
TEST_P(Collectives, AllReduceTakesAnySizes) {
  run_ranks(GetParam(), [](World& world) {
    uint32_t seed = 100;
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      check_all_reduce(world.all(), {1}, wire, seed++);
      check_all_reduce(world.all(), {0, 2}, wire, seed++);
      check_all_reduce(world.all(), {13, 1, 1001, 6}, wire, seed++);
    }
    if (world.all().size() > 3) return;
    check_all_reduce(world.all(), {3 * kRoundElements * 2 + 5, 9}, DType::kF32, seed++);
    check_all_reduce(world.all(), {9, 3 * kRoundElements * 2 + 5}, DType::kBF16, seed++);
  });
}

// Goal: scalars are added as doubles in rank order; broadcast copies the root's bytes.
TEST_P(Collectives, ScalarsBroadcastAndBarrier) {
  run_ranks(GetParam(), [](World& world) {
    Communicator& all = world.all();
    std::vector<double> values = {0.1 * (all.index() + 1), 1e300 * all.index(), 1.0};
    all.all_reduce(values, kLabel).wait();
    double expected = 0.1;
    for (int32_t rank = 1; rank < all.size(); ++rank) expected += 0.1 * (rank + 1);
    EXPECT_EQ(values[0], expected);
    EXPECT_EQ(values[2], all.size());
    for (int32_t root = 0; root < all.size(); ++root) {
      std::vector<std::byte> bytes(1000, std::byte(all.index()));
      all.broadcast(bytes, root, kLabel).wait();
      EXPECT_EQ(bytes, std::vector<std::byte>(1000, std::byte(root)));
    }
    all.barrier(kLabel).wait();
  });
}

// Goal: several collectives may be in flight at once; they run in order.
TEST_P(Collectives, ManyAtOnce) {
  run_ranks(GetParam(), [](World& world) {
    Communicator& all = world.all();
    std::vector<std::vector<double>> values(20, std::vector<double>(1));
    std::vector<Completion> completions;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i][0] = static_cast<double>(i);
      completions.push_back(all.all_reduce(values[i], kLabel));
    }
    for (size_t i = values.size(); i-- > 0;) completions[i].wait();
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i][0], static_cast<double>(i) * all.size());
    }
  });
}

// Goal: payload counters count the caller's bytes, whatever the number of ranks.
TEST_P(Collectives, CountsWhatIsHandedOver) {
  run_ranks(GetParam(), [](World& world) {
    Communicator& all = world.all();
    const auto size = static_cast<size_t>(all.size());
    std::vector<float> values(10 * size);
    auto scratch = scratch_for(values.size(), DType::kF32, all.size());
    all.reduce_scatter({values}, DType::kBF16, scratch, kLabel).wait();
    all.all_reduce({std::span(values)}, DType::kF32, scratch, kLabel).wait();
    all.all_gather({std::as_writable_bytes(std::span(values))}, {"parameters", UnitId(4)}).wait();
    double scalar = 1;
    all.all_reduce(std::span(&scalar, 1), {"norm", {}}).wait();
    const auto bytes = static_cast<Bytes>(values.size());
    const PayloadCounters::Totals totals = all.counters().take();
    EXPECT_EQ(totals.of(CommKind::kReduceScatter, UnitId(3)).payload, bytes * 2);
    EXPECT_EQ(totals.of(CommKind::kAllReduce, UnitId(3)).payload, bytes * 4);
    EXPECT_EQ(totals.of(CommKind::kAllGather, UnitId(4)).payload, bytes * 4);
    EXPECT_EQ(totals.of(CommKind::kScalars, std::nullopt).payload, 8);
    EXPECT_EQ(totals.all().operations, 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace longshore
