// Whole steps of a small model on the engine, for tests of what may not change a bit: a variant
// says how they are run, and a digest of the losses and of all state what came of it. Ranks are
// threads with a world of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "model/module_model.h"
#include "offload/engine/engine.h"

namespace longshore {

// Where activation checkpoints are.
enum class InputHome : uint8_t { kDevice, kHost, kNvme };

struct Variant {
  int64_t prefetch = 1;
  bool recompute = true;
  InputHome inputs = InputHome::kDevice;
  UpdateOverlap overlap = UpdateOverlap::kNone;
  bool clips = true;
  GatherMode gather = GatherMode::kCollective;
  std::optional<StreamDelays> delays = {};
  bool files = false;  // state, parameters and inputs that leave the device are a FileTier's
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

// A table, hidden layers of two sizes and a head.
std::unique_ptr<ModuleModel> make_deep_model();

TierPlan plan_of(const Model& model, const Variant& variant, int32_t ranks);

// The digest of everything that the rank keeps after the steps, and of their losses.
uint64_t train(Engine& engine, const ModuleModel& model, const Variant& variant, size_t steps);
uint64_t train_alone(const Variant& variant, size_t steps);

// The digests of all ranks for every variant, over one world, whose device is the first one's.
std::vector<std::vector<uint64_t>> train_ranks(int32_t ranks, const std::vector<Variant>& variants,
                                               size_t steps);

// A pairwise cover of what may not matter, at every number of ranks on its own.
std::vector<Variant> cover(bool clips);

// One rank's communicators, as a run makes them. They must not outlive the world.
struct RankCommunicators {
  // On a GPU: with `two`, gathers and sums have a communicator each, as on the CPU.
  RankCommunicators(World& world, DeviceKind device, bool two = false);

  std::unique_ptr<Communicator> shards, gathers, host_shards;
  RankGroups groups;
};

}  // namespace longshore
