#include "trainer/setup/gather_choice.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/errors.h"
#include "base/log.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

// A block of a small model; what matters is the rate.
constexpr size_t kProbeBytes = 8 * static_cast<size_t>(kMiB);
constexpr int kRounds = 3;

template <typename Work>
double best_seconds(const Work& work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count());
  }
  return best;
}

// The same on all ranks: their times are added.
GatherMode measure(const RunRanks& ranks) {
  const RankGroups& groups = ranks.groups();
  const auto members = static_cast<size_t>(groups.topology.shard_ranks);
  const size_t part = kProbeBytes / members / 4096 * 4096;
  std::vector<std::byte> home(part * members), slot(part * members);
  const size_t own = static_cast<size_t>(groups.shard().value) * part;
  std::array<double, 2> seconds = {};
  seconds[0] = best_seconds([&] {
    std::memcpy(slot.data() + own, home.data() + own, part);
    groups.gathers->all_gather({std::span(slot)}, {"a measurement", {}}).wait();
  });
  seconds[1] = best_seconds([&] { std::memcpy(slot.data(), home.data(), home.size()); });
  groups.all->all_reduce(std::span<double>(seconds), {"a measurement", {}}).wait();
  const bool host = seconds[1] < seconds[0];
  if (ranks.first()) {
    char text[160];
    std::snprintf(
        text, sizeof text, "fsdp.gather: %s (%s on the host %.2f ms, gathered %.2f ms)",
        host ? "host" : "collective", format_bytes(static_cast<Bytes>(home.size())).c_str(),
        seconds[1] / groups.topology.ranks * 1e3, seconds[0] / groups.topology.ranks * 1e3);
    log_info(text);
  }
  return host ? GatherMode::kHost : GatherMode::kCollective;
}

}  // namespace

void choose_gather(const RunConfig& config, const RunRanks* ranks, PlanInputs& inputs) {
  inputs.gather = GatherMode::kCollective;
  const std::string obstacle = why_not_on_host(inputs);
  const std::optional<GatherMode> wanted = config.fsdp.gather;
  if (wanted == GatherMode::kCollective) return;
  if (!wanted) {
    if (!obstacle.empty()) return;
    inputs.gather = ranks == nullptr ? GatherMode::kHost : measure(*ranks);
    return;
  }
  if (inputs.topology.ranks == 1) return;
  if (!obstacle.empty()) {
    throw ConfigError("fsdp.gather = \"host\" cannot be: " + obstacle +
                      "; set fsdp.gather = \"auto\"");
  }
  inputs.gather = GatherMode::kHost;
}

}  // namespace longshore
