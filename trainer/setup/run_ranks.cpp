#include "trainer/setup/run_ranks.h"

#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/log.h"
#include "comm/store/store_secret.h"
#include "device/cuda_runtime.h"
#include "offload/plan/plan_from_config.h"
#include "pinned/pinned_arena.h"
#include "trainer/device/run_environment.h"

namespace longshore {

ShardTopology topology_of(const FsdpSection& fsdp, int32_t ranks, int32_t ranks_per_node) {
  const auto hybrid = static_cast<int32_t>(fsdp.shard_ranks.value_or(ranks_per_node));
  return make_topology(fsdp.strategy, ranks, hybrid);
}

namespace {

// Reads the store's secret from a file for launchers other than `longshore launch`, which sets it.
void read_secret(const DistSection& dist, RankInfo& ranks) {
  const bool has_file = dist.secret_file != "none";
  if (!ranks.secret.empty()) return;
  if (ranks.launcher == "launch") {
    if (!has_file) return;
    throw ConfigError(
        "dist.secret_file is set, but longshore launch was not given it; start all nodes with "
        "launch --secret-file " +
        dist.secret_file);
  }
  if (has_file) {
    ranks.secret = read_store_secret(dist.secret_file, "dist.secret_file");
  } else if (ranks.rank == 0) {
    log_warning(
        "the ranks connect without a secret: any process that reaches their store can read the run "
        "file and end the run; set dist.secret_file (SECURITY.md)");
  }
}

std::string describe_groups(const ShardTopology& topology) {
  return "fsdp.strategy = " + std::string(name_of(topology.strategy)) +
         "\nranks that share a copy of the model: " + std::to_string(topology.shard_ranks) + "\n";
}

// Returns the NUMA node to which this rank keeps, from all ranks' GPUs. All ranks call it together;
// a rank on the CPU names no GPU.
std::optional<int> numa_node_of(World& world, std::optional<int> gpu) {
  const std::vector<CudaDevice> gpus = gpu ? cuda_devices() : std::vector<CudaDevice>{};
  const auto index = static_cast<size_t>(gpu.value_or(0));
  const int mine = index < gpus.size() ? gpus[index].numa_node : -1;
  const std::string machine = std::to_string(world.ranks().node) + " ";
  const std::vector<std::string> all =
      world.exchange("nodes of GPUs", machine + std::to_string(mine));
  std::vector<int> near;
  size_t own = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].starts_with(machine)) continue;
    if (static_cast<int32_t>(rank) == world.ranks().rank) own = near.size();
    near.push_back(std::stoi(all[rank].substr(machine.size())));
  }
  const std::optional<int> node = node_of_rank(near, own, read_numa_nodes("/").size());
  if (node) {
    log_info("host memory and the update's threads are on NUMA node " + std::to_string(*node) +
             ", next to the GPU");
  }
  return node;
}

}  // namespace

void check_backend(const RunConfig& config) {
  const bool gpu = device_kind(config) == DeviceKind::kCuda;
  if (config.dist.backend != (gpu ? CommBackend::kGloo : CommBackend::kNccl)) return;
  throw ConfigError(gpu ? "dist.backend = \"gloo\" is for runs on the CPU, and this one is on a "
                          "GPU; set \"auto\" or \"nccl\""
                        : "dist.backend = \"nccl\" is for runs on GPUs, and this one is on the "
                          "CPU; set \"auto\" or \"gloo\"");
}

RunRanks::RunRanks(const RunConfig& config, size_t visible_gpus) {
  WorldOptions options;
  options.visible_gpus = visible_gpus;
  options.timeout = std::chrono::milliseconds(config.dist.timeout_ms);
  options.backend = config.dist.backend;
  options.device = device_kind(config);
  check_backend(config);
  RankInfo found = discover_ranks();
  if (found.size > 1) read_secret(config.dist, found);
  world_ = World::connect(found, options);
  // Another build may exchange other messages from here on.
  world_->agree("the program's build", build_id() + "\n");
  groups_.topology = topology_of(config.fsdp, info().size, info().local_size);
  // The groups below are made together, before the run files are compared as a whole. By default
  // hybrid_shard depends on the number of ranks of a node.
  world_->agree("the groups of ranks", describe_groups(topology()));
  groups_.rank = rank();
  groups_.gpu = gpu_of(info(), visible_gpus);
  if (rank().value != 0) hush_progress();
  if (info().size == 1) return;
  log_info(info().text());
  groups_.all = &world_->all();
  groups_.report_failure = [this](const std::string& message) { world_->report_failure(message); };
  groups_.check = [this] { world_->check(); };
  const bool on_gpu = options.device == DeviceKind::kCuda;
  groups_.numa_node = numa_node_of(*world_, on_gpu ? std::optional(groups_.gpu) : std::nullopt);
  if (topology().shard_ranks > 1) {
    shards_ = world_->group("shards", topology().shard_group(rank()));
    groups_.shards = shards_.get();
    // An NCCL communicator holds hundreds of MiB on the GPU and cannot use host memory.
    const std::vector<int32_t> members = topology().shard_group(rank());
    beside_ = on_gpu ? world_->host_group("shards on the host", members)
                     : world_->group("gathers", members);
    groups_.gathers = on_gpu ? shards_.get() : beside_.get();
    groups_.host_shards = beside_.get();
  }
  if (topology().replicas() > 1) {
    replicas_ = world_->group("replicas", topology().replica_group(rank()));
    groups_.replicas = replicas_.get();
  }
}

void RunRanks::add_routers() {
  if (info().size == 1) return;
  std::vector<int32_t> all(static_cast<size_t>(info().size));
  std::iota(all.begin(), all.end(), 0);
  routers_ = world_->host_group("routers", all);
  groups_.routers = routers_.get();
}

}  // namespace longshore
