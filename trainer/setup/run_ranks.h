// RunRanks: this process as a rank of a run: the world of all ranks, and the groups that its
// collectives use. Shared by the stages of the run's setup (run_setup.h); main thread.
#pragma once

#include <memory>

#include "comm/world/world.h"
#include "config/run_config.h"
#include "offload/staging/rank_groups.h"

namespace longshore {

class RunRanks {
 public:
  // Joins the other ranks if the launcher's variables name several, and logs how they were found.
  // `visible_gpus` is the number of GPUs that this process sees. Throws ConfigError or CommError.
  RunRanks(const RunConfig& config, size_t visible_gpus);

  World& world() const { return *world_; }
  const RankInfo& info() const { return world_->ranks(); }
  Rank rank() const { return Rank(info().rank); }
  // Rank 0 alone writes metrics, manifests, exports and messages.
  bool first() const { return info().rank == 0; }
  const ShardTopology& topology() const { return groups_.topology; }
  const RankGroups& groups() const { return groups_; }
  // Creates the group that sums the routers' expert choices. Collective.
  void add_routers();

 private:
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> shards_;
  std::unique_ptr<Communicator> beside_;  // second communicator of the shard group
  std::unique_ptr<Communicator> replicas_;
  std::unique_ptr<Communicator> routers_;
  RankGroups groups_;
};

// Throws ConfigError if the library of dist.backend cannot take the buffers of the run's device,
// which is no longer "auto".
void check_backend(const RunConfig& config);

// Returns the run file's groups of ranks. Throws ConfigError if the ranks do not divide evenly.
ShardTopology topology_of(const FsdpSection& fsdp, int32_t ranks, int32_t ranks_per_node);

}  // namespace longshore
