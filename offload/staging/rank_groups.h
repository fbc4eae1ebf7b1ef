// RankGroups: the groups of ranks that a step's collectives run over. Tied from whoever made
// them (a World); null pointers stand for groups of one, so a single rank has none at all.
#pragma once

#include <functional>
#include <string>

#include "comm/operations/communicator.h"
#include "shard/shard_topology.h"

namespace longshore {

struct RankGroups {
  ShardTopology topology = {};
  Rank rank = {};
  int gpu = 0;                     // this rank's, of its node's
  Communicator* all = nullptr;     // every rank
  Communicator* shards = nullptr;  // who hold the other shards of this rank's copy of the model
  // Gathers units over the ranks of `shards`. On the CPU a communicator of its own, since gathers
  // and sums are under way at the same time. On GPUs `shards` itself: they run one at a time.
  Communicator* gathers = nullptr;
  Communicator* host_shards = nullptr;  // the same ranks, for memory of the host
  Communicator* replicas = nullptr;     // who hold the same shard
  Communicator* routers = nullptr;  // every rank, for the compute lane; where experts are balanced
  // Tells the other ranks why this one ends; may be empty. Any thread.
  std::function<void(const std::string&)> report_failure = {};
  // Throws where it is known that another rank has failed; may be empty. Any thread.
  std::function<void()> check = {};

  Rank shard() const { return topology.shard_of(rank); }
  // Of several equal copies the first one counts: norms, checkpoints.
  bool first_replica() const { return topology.replica_of(rank) == 0; }
};

}  // namespace longshore
