#include "shard/shard_topology.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"

namespace longshore {
namespace {

// The strategy decides into how many shards and replicas the ranks are cut.
TEST(ShardTopology, CutsRanksAsTheStrategySays) {
  EXPECT_EQ(make_topology(ShardStrategy::kFullShard, 8, 2).shard_ranks, 8);
  EXPECT_EQ(make_topology(ShardStrategy::kShardGradOp, 8, 2).shard_ranks, 8);
  EXPECT_TRUE(make_topology(ShardStrategy::kShardGradOp, 8, 2).keeps_gathered());
  EXPECT_EQ(make_topology(ShardStrategy::kHybridShard, 8, 2).replicas(), 4);
  EXPECT_EQ(make_topology(ShardStrategy::kNoShard, 8, 2).replicas(), 8);
}

// Hybrid shard groups are neighbouring ranks, and replica groups are strided.
TEST(ShardTopology, HybridGroupsAreNeighboursAndReplicasAreStrided) {
  const ShardTopology topology = make_topology(ShardStrategy::kHybridShard, 6, 3);
  EXPECT_EQ(topology.shard_group(Rank(4)), (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(topology.replica_group(Rank(4)), (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(topology.shard_of(Rank(4)), Rank(1));
  EXPECT_EQ(topology.replica_of(Rank(4)), 1);
}

// Every rank is in one shard group and one replica group, at its own index.
TEST(ShardTopology, GroupsPartitionTheRanks) {
  for (int32_t ranks = 1; ranks <= 12; ++ranks) {
    for (int32_t hybrid = 1; hybrid <= ranks; ++hybrid) {
      if (ranks % hybrid != 0) {
        EXPECT_THROW(make_topology(ShardStrategy::kHybridShard, ranks, hybrid), ConfigError);
        continue;
      }
      const ShardTopology topology = make_topology(ShardStrategy::kHybridShard, ranks, hybrid);
      for (int32_t r = 0; r < ranks; ++r) {
        const Rank rank(r);
        const auto shards = topology.shard_group(rank);
        const auto replicas = topology.replica_group(rank);
        EXPECT_EQ(shards.at(static_cast<size_t>(topology.shard_of(rank).value)), r);
        EXPECT_EQ(replicas.at(static_cast<size_t>(topology.replica_of(rank))), r);
        for (int32_t other : shards) EXPECT_EQ(topology.shard_group(Rank(other)), shards);
        for (int32_t other : replicas) EXPECT_EQ(topology.replica_group(Rank(other)), replicas);
      }
    }
  }
}

}  // namespace
}  // namespace longshore
