// RunRanks: this process's place among the ranks of a run: the world, the groups its collectives
// run over, and what all ranks must agree on before anything is allocated. Owned by the command;
// main thread.
#pragma once

#include <memory>

#include "comm/world/world.h"
#include "config/run_config.h"
#include "offload/staging/rank_groups.h"

namespace longshore {

class RunRanks {
 public:
  // Joins the other ranks, where the launcher's variables speak of several; prints how they were
  // found. Throws ConfigError or CommError.
  // `visible_gpus`: how many this process sees.
  RunRanks(const RunConfig& config, size_t visible_gpus);

  World& world() const { return *world_; }
  const RankInfo& info() const { return world_->ranks(); }
  Rank rank() const { return Rank(info().rank); }
  // Writes what is written once: metrics, manifests, exports, messages.
  bool first() const { return info().rank == 0; }
  const ShardTopology& topology() const { return groups_.topology; }
  const RankGroups& groups() const { return groups_; }
  // All ranks: from here on there is a group for what routers chose.
  void add_routers();

 private:
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> shards_;
  std::unique_ptr<Communicator> beside_;  // the shard group's second one
  std::unique_ptr<Communicator> replicas_;
  std::unique_ptr<Communicator> routers_;
  RankGroups groups_;
};

// The groups that the run file's strategy makes of the ranks. ConfigError where they do not divide.
ShardTopology topology_of(const FsdpSection& fsdp, int32_t ranks, int32_t ranks_per_node);

}  // namespace longshore
