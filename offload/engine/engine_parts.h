// EngineParts: everything of one rank that a pass works with, made and sized as a plan says: the
// device's memory, the tiers, the slots, what runs units, sums, drains and updates. Owned by the
// engine, made by its thread; lanes use it by way of PassWork, in the order of the schedule.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "offload/engine/batch_stage.h"
#include "offload/engine/engine_device.h"
#include "offload/engine/input_offload.h"
#include "offload/engine/step_commit.h"
#include "offload/engine/tiers.h"
#include "offload/engine/unit_runner.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/plan/tier_plan.h"
#include "offload/staging/gradient_drain.h"
#include "offload/staging/gradient_reducer.h"
#include "offload/staging/host_gradients.h"
#include "offload/staging/prefetcher.h"

namespace longshore {

struct EngineParts {
  // What all parts are made from. `model` and the groups' communicators must outlive the parts.
  struct Options {
    const Model* model = nullptr;
    const TierPlan& plan;
    const AdamWOptions& adamw;
    const RankGroups& groups;
    const RunKey& state_key;
    LinkSpeeds cpu_links = {};  // of the CPU device
    const MakeTiers& make_tiers;
  };
  // Allocates everything that the plan fixes, and checks that it is no more and no less.
  explicit EngineParts(const Options& options);
  EngineParts(const EngineParts&) = delete;
  EngineParts& operator=(const EngineParts&) = delete;

  const ModelSpec& spec() const { return model->spec(); }

  const Model* model;
  TierPlan plan;
  RankGroups groups;
  std::vector<FlatLayout> layouts;
  EngineDevice device;
  WorkerPool pool;
  Tiers tiers;
  StepCommit commits;
  HostGradients host_gradients;
  std::unique_ptr<NodeShards> node;  // null: shards are gathered by collectives
  StageRing ring;
  Prefetcher prefetcher;
  BatchStage batches;
  UnitRunner runner;
  GradientReducer reducer;
  GradientDrain drain;
  OptimizerPipeline optimizer;
  std::optional<InputOffload> inputs;  // none: inputs stay on the device
};

}  // namespace longshore
