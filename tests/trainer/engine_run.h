// EngineRun: a run of an engine without a run file, for tests of update rules. Each rank is a
// thread of the test. A run starts from new weights, a checkpoint or its drive, and ends with a
// checkpoint, whose tensors saved_state() reads.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/engine/engine.h"
#include "offload/engine/train_step.h"
#include "tests/comm/rank_threads.h"
#include "tests/trainer/checkpoint_fixture.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {

// EngineInputs holds what the engine of one rank is made of.
struct EngineInputs {
  std::unique_ptr<Model> model = {};
  TierPlan plan = {};
  std::unique_ptr<UpdateRule> rule = {};
  ParameterReader initial = {};               // of new weights
  std::optional<Bytes> bytes_of_update = {};  // compared with those of the run on one rank
};

struct EngineRun {
  ShardTopology topology = {};
  std::function<EngineInputs()> make = {};  // called on each rank
  // Returns a rank's micro-batches of a step; called on each rank.
  std::function<std::vector<MicroBatch>(int64_t step, int32_t rank)> batches = {};
  double loss_terms = 0.0;
  double lr = 0.0;
  std::string from = {};    // the checkpoint to start from; empty: none
  bool from_drive = false;  // whether the drive has a state to go on from
};

// The communicators of one rank. They must outlive what is made of `groups`.
struct EngineCommunicators {
  RankGroups groups;
  std::unique_ptr<Communicator> shards, gathers, replicas;

  EngineCommunicators(World& world, const ShardTopology& topology) {
    if (topology.ranks == 1) return;
    groups.topology = topology;
    groups.rank = Rank(world.ranks().rank);
    groups.all = &world.all();
    shards = world.group("shards", topology.shard_group(groups.rank));
    gathers = world.group("gathers", topology.shard_group(groups.rank));
    groups.shards = shards.get();
    groups.gathers = gathers.get();
    if (topology.replicas() == 1) return;
    replicas = world.group("replicas", topology.replica_group(groups.rank));
    groups.replicas = replicas.get();
  }
};

// Loads the engine, restores it from a checkpoint, or goes on from its drive; returns whether the
// drive had a point.
inline bool start_engine(Engine& engine, const ParameterReader& initial,
                         const std::string& checkpoint) {
  const std::optional<DurablePoint> point = engine.commits().start(17);
  if (point) {
    engine.set_updates(point->step);
    engine.advance_version();
    return true;
  }
  engine.load(initial);
  if (!checkpoint.empty()) {
    const Checkpoint opened = Checkpoint::open(checkpoint);
    opened.verify();
    restore_checkpoint(opened, engine);
    engine.set_updates(opened.manifest().progress.step.value);
  }
  if (engine.commits().commits()) engine.commit({engine.updates(), ""});
  return false;
}

// Trains an engine from its update on until update `last`; returns the number of updates.
inline int64_t train_engine(Engine& engine, const EngineRun& run, int64_t last) {
  const int64_t first = engine.updates();
  for (int64_t step = first + 1; step <= last; ++step) {
    const std::vector<MicroBatch> own = run.batches(step, engine.groups().rank.value);
    StepRequest request{.batches = own, .loss_terms = run.loss_terms, .lr = run.lr};
    if (engine.commits().commits()) {
      request.record = [step](bool) { return DurableStep{step, ""}; };
    }
    EXPECT_FALSE(train_step(engine, request).skipped);
  }
  engine.apply_updates();
  return last - first;
}

// Trains up to update `last` and saves a checkpoint in `folder`; returns its path.
inline std::string run_engine(const EngineRun& run, int64_t last, const std::string& folder) {
  std::string path;
  run_ranks(run.topology.ranks, [&](World& world) {
    const EngineCommunicators own(world, run.topology);
    EngineInputs inputs = run.make();
    Engine engine(inputs.model.get(), inputs.plan, std::move(inputs.rule), own.groups,
                  RunKey{{3, 4}});
    EXPECT_EQ(start_engine(engine, inputs.initial, run.from), run.from_drive);
    const int64_t updates = train_engine(engine, run, last);
    if (run.topology.ranks == 1 && inputs.bytes_of_update) {
      EXPECT_EQ(engine.take_update_bytes(), updates * *inputs.bytes_of_update);
    }
    const ShardedModel sharded{engine.spec(), engine.layouts(), own.groups.shard()};
    const SavedCheckpoint saved = save_checkpoint(folder, 9, progress_at(last), sharded,
                                                  engine.state_sweep(), world, own.groups);
    if (world.ranks().rank == 0) path = saved.path;
  });
  return path;
}

// The values of a checkpoint, by "<parameter>.<kind>".
using SavedState = std::map<std::string, std::vector<float>>;

inline SavedState saved_state(const std::string& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  checkpoint.verify();
  SavedState state;
  for (const CheckpointParameter& parameter : checkpoint.manifest().parameters) {
    std::vector<std::string> kinds = {kMasterKind};
    for (const CheckpointRegion& region : checkpoint.manifest().regions) {
      if (is_kept(region.use, parameter.whole_matrices)) kinds.push_back(region.name);
    }
    for (const std::string& kind : kinds) {
      std::vector<float>& values = state[parameter.name + "." + kind];
      values.resize(static_cast<size_t>(parameter.elements()));
      checkpoint.read(parameter.name, kind, 0, values);
    }
  }
  return state;
}

// Returns the bytes of a checkpoint's values, which are in fp32.
inline Bytes bytes_of_values(const SavedState& state) {
  Bytes bytes = 0;
  for (const auto& [name, values] : state) bytes += 4 * static_cast<Bytes>(values.size());
  return bytes;
}

inline std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().flatten();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

}  // namespace longshore
