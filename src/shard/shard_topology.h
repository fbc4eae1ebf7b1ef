// ShardTopology: which ranks share one copy of the model, and which hold the same shard. Plain
// value, equal on every rank.
//
// Each `shard_ranks` consecutive ranks are a shard group, whose members hold one shard each. Ranks
// at the same index of their groups hold the same shard (replicas).
//   full_shard, shard_grad_op   one group of all ranks
//   hybrid_shard                groups of one node, or of a given size
//   no_shard                    groups of one
// See Zhao et al. 2023, "PyTorch FSDP", section 3.2; hybrid_shard as in Zhang et al. 2022,
// "MiCS".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "shard/policy.h"

namespace longshore {

std::string_view name_of(ShardStrategy strategy);  // the name in the run file: "full_shard"

struct ShardTopology {
  ShardStrategy strategy = ShardStrategy::kFullShard;
  int32_t ranks = 1;
  int32_t shard_ranks = 1;  // the shard factor; divides `ranks`

  int32_t replicas() const { return ranks / shard_ranks; }
  // Returns whether a gathered unit stays in its slot from forward to backward.
  bool keeps_gathered() const { return strategy == ShardStrategy::kShardGradOp; }
  // Returns the rank's index in its shard group, which is the shard it holds.
  Rank shard_of(Rank rank) const { return Rank(rank.value % shard_ranks); }
  // Returns the index of the model copy that the rank belongs to.
  int32_t replica_of(Rank rank) const { return rank.value / shard_ranks; }
  // Both return the members in ascending order, the rank itself included.
  std::vector<int32_t> shard_group(Rank rank) const;
  std::vector<int32_t> replica_group(Rank rank) const;
  bool operator==(const ShardTopology&) const = default;
};

// Makes the topology. `hybrid_ranks` is the shard group's size for hybrid_shard; other strategies
// ignore it. Throws ConfigError if it does not divide `ranks`.
ShardTopology make_topology(ShardStrategy strategy, int32_t ranks, int32_t hybrid_ranks);

}  // namespace longshore
