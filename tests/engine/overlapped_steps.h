// Whole steps of a small model on the engine, for tests of options that must not change a bit. A
// Variant says how steps run; a digest sums up losses and state. Ranks are threads with a world of
// their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "model/models/module_model.h"
#include "offload/engine/engine.h"

namespace longshore {

// InputHome: the tier of activation checkpoints.
enum class InputHome : uint8_t { kDevice, kHost, kNvme };

struct Variant {
  int64_t prefetch = 1;
  bool recompute = true;
  InputHome inputs = InputHome::kDevice;
  UpdateOverlap overlap = UpdateOverlap::kNone;
  bool clips = true;
  GatherMode gather = GatherMode::kCollective;
  std::optional<StreamDelays> delays = {};
  bool files = false;  // state, parameters and offloaded inputs are in a FileTier
  DeviceKind device = DeviceKind::kCpu;

  std::string text() const {
    return "prefetch " + std::to_string(prefetch) + ", recompute " + std::to_string(recompute) +
           ", inputs " + std::to_string(static_cast<int>(inputs)) + ", gather " +
           std::to_string(static_cast<int>(gather)) + ", overlap " +
           std::to_string(static_cast<int>(overlap)) + ", delays " +
           std::to_string(delays ? static_cast<int64_t>(delays->seed) : -1) +
           (files ? ", in files" : "");
  }
};

// Makes a model of a table, hidden layers of two sizes and a head.
std::unique_ptr<ModuleModel> make_deep_model();

TierPlan plan_of(const Model& model, const Variant& variant, int32_t ranks);

// Trains the steps and returns the digest of the losses and of all state of the rank.
uint64_t train(Engine& engine, const ModuleModel& model, const Variant& variant, size_t steps);
uint64_t train_alone(const Variant& variant, size_t steps);

// Returns the digests of all ranks for every variant, over one world on the first variant's device.
std::vector<std::vector<uint64_t>> train_ranks(int32_t ranks, const std::vector<Variant>& variants,
                                               size_t steps);

// Returns a pairwise cover of the options that must not change a bit at a fixed number of ranks.
std::vector<Variant> cover(bool clips);

// RankCommunicators: one rank's communicators as in a run. They must not outlive the world.
struct RankCommunicators {
  // With `two` on a GPU, gathers and sums have a communicator each, as on the CPU.
  RankCommunicators(World& world, DeviceKind device, bool two = false);

  std::unique_ptr<Communicator> shards, gathers, host_shards;
  RankGroups groups;
};

}  // namespace longshore
