// RankGroups: the groups of ranks that a step's collectives run over. Borrowed from whoever made
// them (a World); null pointers stand for groups of one, so a single rank has none at all.
#pragma once

#include "comm/communicator.h"
#include "shard/shard_topology.h"

namespace longshore {

struct RankGroups {
  ShardTopology topology;
  Rank rank;
  Communicator* all = nullptr;       // every rank
  Communicator* shards = nullptr;    // who hold the other shards of this rank's copy of the model
  Communicator* replicas = nullptr;  // who hold the same shard

  Rank shard() const { return topology.shard_of(rank); }
  // Of several equal copies the first one counts: norms, checkpoints.
  bool first_replica() const { return topology.replica_of(rank) == 0; }
};

}  // namespace longshore
