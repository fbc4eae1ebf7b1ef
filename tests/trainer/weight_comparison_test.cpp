// Goal: ranks that load different weights are refused, whichever rank and shard differ, and ranks
// that share their files compare nothing.
#include <gtest/gtest.h>

#include <array>

#include "base/errors.h"
#include "tests/comm/rank_threads.h"
#include "trainer/model/weight_check.h"

namespace longshore {
namespace {

constexpr int32_t kRanks = 4;

// The files of one rank: their identity, and the shard in which they have another value (-1: none).
struct Files {
  std::string identity;
  int32_t other_shard = -1;
};

std::array<float, 3> values_of(const Files& files, int32_t shard) {
  const auto value = static_cast<float>(shard);
  return {value, files.other_shard == shard ? value + 0.5f : value + 1.0f, value + 2.0f};
}

// The outcome of a comparison over all ranks.
struct Outcome {
  std::string error;       // of all ranks; empty: none
  std::string also_reads;  // by rank, the shard that it reads as well or "-"
};

Outcome compare(int32_t shard_ranks, const std::array<Files, kRanks>& files) {
  const ShardTopology topology = make_topology(ShardStrategy::kHybridShard, kRanks, shard_ranks);
  std::array<std::string, kRanks> errors, read;
  run_ranks(kRanks, [&](World& world) {
    const auto rank = static_cast<size_t>(world.ranks().rank);
    const auto name = [](int32_t shard) { return "tensor " + std::to_string(shard); };
    WeightComparison comparison(files[rank].identity, topology, world);
    const int32_t own = topology.shard_of(Rank(world.ranks().rank)).value;
    const auto mine = values_of(files[rank], own);
    comparison.take(name(own), 7, std::as_bytes(std::span(mine)));
    const std::optional<Rank> other = comparison.other_shard();
    read[rank] = other ? std::to_string(other->value) : "-";
    if (other) {
      const auto values = values_of(files[rank], other->value);
      comparison.take_other(name(other->value), 7, std::as_bytes(std::span(values)));
    }
    EXPECT_TRUE(comparison.needed() || !other);
    try {
      comparison.conclude("the model");
    } catch (const ConfigError& error) {
      errors[rank] = error.what();
    }
  });
  Outcome outcome{.error = errors[0], .also_reads = ""};
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  for (const std::string& shard : read) outcome.also_reads += shard;
  return outcome;
}

std::string refusal(int32_t rank, int32_t than, int32_t shard) {
  return "rank " + std::to_string(rank) + " differs from rank " + std::to_string(than) +
         " in the weights: tensor 'tensor " + std::to_string(shard) +
         "' has other values in the model; give all ranks copies of the same files";
}

// Ranks that read the same files of one machine read no shard twice.
TEST(WeightComparison, OfSharedFilesReadsNothing) {
  const Outcome outcome = compare(4, {{{"1 2"}, {"1 2"}, {"1 2"}, {"1 2"}}});
  EXPECT_EQ(outcome.also_reads, "----");
  EXPECT_EQ(outcome.error, "");
}

// Random weights are read from no file.
TEST(WeightComparison, OfNoFilesReadsNothing) {
  EXPECT_EQ(compare(4, {}).also_reads, "----");
}

// Where files change from rank to rank, the next rank's shard is read as well.
TEST(WeightComparison, OfEqualCopiesReadsTheNextShard) {
  const Outcome nodes = compare(4, {{{"a"}, {"a"}, {"b"}, {"b"}}});
  EXPECT_EQ(nodes.also_reads, "-2-0") << "two nodes with a copy each";
  EXPECT_EQ(nodes.error, "");
  EXPECT_EQ(compare(4, {{{"a"}, {"b"}, {"c"}, {"d"}}}).also_reads, "1230");
  EXPECT_EQ(compare(2, {{{"a"}, {"a"}, {"b"}, {"b"}}}).also_reads, "----") << "two whole copies";
}

// Each shard that is trained is compared, whichever copy has the other value.
TEST(WeightComparison, NamesRanksAndTensor) {
  EXPECT_EQ(compare(4, {{{"a"}, {"b", 1}, {"c"}, {"d"}}}).error, refusal(1, 0, 1));
  EXPECT_EQ(compare(4, {{{"a"}, {"b", 2}, {"c"}, {"d"}}}).error, refusal(2, 1, 2));
  EXPECT_EQ(compare(4, {{{"a", 0}, {"b"}, {"c"}, {"d"}}}).error, refusal(3, 0, 0));
  EXPECT_EQ(compare(4, {{{"a"}, {"a"}, {"b", 0}, {"b", 0}}}).error, refusal(3, 0, 0));
}

// Copies of the model compare what they load, and each shard group compares inside.
TEST(WeightComparison, OfSeveralCopiesComparesEqualShards) {
  EXPECT_EQ(compare(2, {{{"a"}, {"a"}, {"b", 1}, {"b", 1}}}).error, refusal(3, 1, 1));
  EXPECT_EQ(compare(1, {{{"a"}, {"b"}, {"c"}, {"d", 0}}}).error, refusal(3, 0, 0));
  EXPECT_EQ(compare(2, {{{"a"}, {"b", 1}, {"c"}, {"d", 1}}}).error, refusal(1, 0, 1));
}

}  // namespace
}  // namespace longshore
