// ShardTopology: which ranks share one copy of the model, and which hold the same shard. A plain
// value; the same on every rank.
//
// Ranks are cut into groups of `shard_ranks` in a row: a group's members hold one shard each (the
// shard group). Members with the same place in their groups hold the same shard (replicas).
//   full_shard, shard_grad_op   one group of all ranks
//   hybrid_shard                groups of one node, or of a given size
//   no_shard                    groups of one
// After Zhao et al. 2023, "PyTorch FSDP", section 3.2; hybrid_shard as in Zhang et al. 2022,
// "MiCS".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "shard/policy.h"

namespace longshore {

std::string_view name_of(ShardStrategy strategy);  // as in the run file: "full_shard"

struct ShardTopology {
  ShardStrategy strategy = ShardStrategy::kFullShard;
  int32_t ranks = 1;
  int32_t shard_ranks = 1;  // the shard factor; divides `ranks`

  int32_t replicas() const { return ranks / shard_ranks; }
  // A gathered unit stays in its slot from forward to backward.
  bool keeps_gathered() const { return strategy == ShardStrategy::kShardGradOp; }
  // The rank's place in its shard group: which shard it holds.
  Rank shard_of(Rank rank) const { return Rank(rank.value % shard_ranks); }
  // Which copy of the model the rank belongs to.
  int32_t replica_of(Rank rank) const { return rank.value / shard_ranks; }
  // The members, ascending, the rank itself included.
  std::vector<int32_t> shard_group(Rank rank) const;
  std::vector<int32_t> replica_group(Rank rank) const;
  bool operator==(const ShardTopology&) const = default;
};

// `hybrid_ranks`: the size of a shard group of hybrid_shard; the others do not look at it.
// ConfigError where it does not divide the ranks.
ShardTopology make_topology(ShardStrategy strategy, int32_t ranks, int32_t hybrid_ranks);

}  // namespace longshore
