// RankGroups: the communicators of a step's collectives. Non-owning; the World that made them must
// outlive their users. Null stands for a group of one, so a single rank has no communicators.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/operations/communicator.h"
#include "shard/shard_topology.h"

namespace longshore {

struct RankGroups {
  ShardTopology topology = {};
  Rank rank = {};
  int gpu = 0;                        // GPU of this rank, numbered within its node
  std::optional<int> numa_node = {};  // whose cores and memory this rank uses; empty: all
  Communicator* all = nullptr;        // every rank
  Communicator* shards = nullptr;     // ranks with the other shards of the same replica
  // Gathers units over the ranks of `shards`. On the CPU it is a second communicator, because
  // gathers and sums overlap. On GPUs it is `shards` itself: collectives run one at a time.
  Communicator* gathers = nullptr;
  Communicator* host_shards = nullptr;  // the ranks of `shards`, for host memory
  Communicator* replicas = nullptr;     // ranks with the same shard
  Communicator* routers = nullptr;      // all ranks, for the compute lane of balanced experts
  // Reports to the other ranks why this one ends; may be empty. Any thread.
  std::function<void(const std::string&)> report_failure = {};
  // Throws if another rank is known to have failed; may be empty. Any thread.
  std::function<void()> check = {};

  Rank shard() const { return topology.shard_of(rank); }
  // Returns whether this rank's replica provides norms and checkpoints.
  bool first_replica() const { return topology.replica_of(rank) == 0; }
};

}  // namespace longshore
