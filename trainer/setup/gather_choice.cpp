// Chooses fsdp.gather: whether a unit's shards reach the device from the ranks' host memory or by a
// collective.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/errors.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "comm/collectives/nccl_communicator.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "trainer/setup/run_setup.h"

namespace longshore {
namespace {

// The probe copies about as many bytes as a block of a small model has.
constexpr size_t kProbeBytes = 8 * static_cast<size_t>(kMiB);
constexpr int kRounds = 3;

template <typename Work>
double best_seconds(const Work& work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

// Seconds to fill a slot from this machine's memory, and by a collective.
struct GatherSeconds {
  double host = 0.0;
  double collective = 0.0;
};

// Measures on the CPU device, whose slots are in host memory.
GatherSeconds measure_in_memory(const RankGroups& groups, size_t part) {
  const auto members = static_cast<size_t>(groups.topology.shard_ranks);
  std::vector<std::byte> home(part * members), slot(part * members);
  const size_t own = static_cast<size_t>(groups.shard().value) * part;
  const double collective = best_seconds([&] {
    std::memcpy(slot.data() + own, home.data() + own, part);
    groups.gathers->all_gather({std::span(slot)}, {"a measurement", {}}).wait();
  });
  const double host = best_seconds([&] { std::memcpy(slot.data(), home.data(), home.size()); });
  return {host, collective};
}

// Measures on a GPU as a run would copy: from registered memory over the GPU's link, either all
// bytes, or the rank's part followed by an all-gather between GPUs.
GatherSeconds measure_on_gpu(const RankGroups& groups, size_t part) {
  const auto bytes = part * static_cast<size_t>(groups.topology.shard_ranks);
  const HostMapping home(static_cast<Bytes>(bytes), "a measurement");
  const HostRegistration registered(home.bytes());
  const auto arena = make_nccl_arena(static_cast<Bytes>(bytes), groups.gpu);
  const auto copies = make_cuda_copy_engine(groups.gpu);
  const std::span<std::byte> slot = arena->bytes();
  const size_t own = static_cast<size_t>(groups.shard().value) * part;
  const double collective = best_seconds([&] {
    copies->to_device(slot.subspan(own, part), home.bytes().subspan(own, part));
    copies->finish();
    groups.gathers->all_gather({slot}, {"a measurement", {}}).wait();
  });
  const double host = best_seconds([&] {
    copies->to_device(slot, home.bytes());
    copies->finish();
  });
  return {host, collective};
}

// Returns the faster mode by the sum of all ranks' times, so all ranks choose the same.
GatherMode measure(const RankGroups& groups, DeviceKind device) {
  const auto members = static_cast<size_t>(groups.topology.shard_ranks);
  const size_t part = kProbeBytes / members / 4096 * 4096;
  const bool gpu = device == DeviceKind::kCuda;
  const GatherSeconds own = gpu ? measure_on_gpu(groups, part) : measure_in_memory(groups, part);
  std::array<double, 2> seconds = {own.collective, own.host};
  groups.all->all_reduce(std::span<double>(seconds), {"a measurement", {}}).wait();
  const bool host = seconds[1] < seconds[0];
  if (groups.rank.value == 0) {
    log_info(formatted(
        "fsdp.gather: %s (%s on the host %.2f ms, gathered %.2f ms)", host ? "host" : "collective",
        format_bytes(static_cast<Bytes>(part * members)).c_str(),
        seconds[1] / groups.topology.ranks * 1e3, seconds[0] / groups.topology.ranks * 1e3));
  }
  return host ? GatherMode::kHost : GatherMode::kCollective;
}

}  // namespace

void choose_gather(const RunConfig& config, const RankGroups* groups, PlanInputs& inputs) {
  inputs.gather = GatherMode::kCollective;
  const std::string obstacle = why_not_on_host(inputs);
  const std::optional<GatherMode> wanted = config.fsdp.gather;
  if (wanted == GatherMode::kCollective) return;
  if (!wanted) {
    if (!obstacle.empty()) return;
    inputs.gather = groups == nullptr ? GatherMode::kHost : measure(*groups, inputs.device);
    return;
  }
  if (inputs.topology.ranks == 1) return;
  if (!obstacle.empty()) {
    throw ConfigError("fsdp.gather = \"host\" is not possible: " + obstacle +
                      "; set fsdp.gather = \"auto\"");
  }
  inputs.gather = GatherMode::kHost;
}

}  // namespace longshore
