#include "shard/shard_topology.h"

#include <array>
#include <string>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"full_shard", "shard_grad_op", "hybrid_shard",
                                                    "no_shard"};

}  // namespace

std::string_view name_of(ShardStrategy strategy) {
  return kNames[static_cast<size_t>(strategy)];
}

std::vector<int32_t> ShardTopology::shard_group(Rank rank) const {
  std::vector<int32_t> members;
  const int32_t first = replica_of(rank) * shard_ranks;
  for (int32_t i = 0; i < shard_ranks; ++i) members.push_back(first + i);
  return members;
}

std::vector<int32_t> ShardTopology::replica_group(Rank rank) const {
  std::vector<int32_t> members;
  for (int32_t i = 0; i < replicas(); ++i) {
    members.push_back(i * shard_ranks + shard_of(rank).value);
  }
  return members;
}

ShardTopology make_topology(ShardStrategy strategy, int32_t ranks, int32_t hybrid_ranks) {
  LONGSHORE_CHECK(ranks >= 1) << ranks;
  switch (strategy) {
    case ShardStrategy::kFullShard:
    case ShardStrategy::kShardGradOp:
      return {strategy, ranks, ranks};
    case ShardStrategy::kNoShard:
      return {strategy, ranks, 1};
    case ShardStrategy::kHybridShard:
      break;
  }
  if (hybrid_ranks < 1 || ranks % hybrid_ranks != 0) {
    throw ConfigError("fsdp.shard_ranks = " + std::to_string(hybrid_ranks) +
                      ": does not divide the run's " + std::to_string(ranks) +
                      " ranks; hybrid_shard needs groups of equal size");
  }
  return {strategy, ranks, hybrid_ranks};
}

}  // namespace longshore
