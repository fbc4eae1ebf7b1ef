// EngineParts: all objects of one rank that a pass uses, made and sized by a plan: device memory,
// tiers, slots, and the parts that run units, sum, drain and update. Owned by the engine and made
// by its thread; lanes use it through PassWork in schedule order.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "offload/engine/batch_stage.h"
#include "offload/engine/carry_store.h"
#include "offload/engine/engine_device.h"
#include "offload/engine/step_commit.h"
#include "offload/engine/tiers.h"
#include "offload/engine/unit_runner.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/plan/tier_plan.h"
#include "offload/staging/gradient_drain.h"
#include "offload/staging/prefetcher.h"

namespace longshore {

struct EngineParts {
  // The inputs of all parts. `model` and the groups' communicators must outlive the parts.
  struct Options {
    const Model* model = nullptr;
    const TierPlan& plan;
    const AdamWOptions& adamw;
    const RankGroups& groups;
    const RunKey& state_key;
    LinkSpeeds cpu_links = {};  // link speeds of the CPU device
    const MakeTiers& make_tiers;
  };
  // Allocates everything in the plan, and checks that the sizes match it exactly.
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
  std::unique_ptr<NodeShards> node;  // null: collectives gather shards
  StageRing ring;
  Prefetcher prefetcher;
  BatchStage batches;
  UnitRunner runner;
  GradientReducer reducer;
  GradientDrain drain;
  OptimizerPipeline optimizer;
  std::optional<InputOffload> inputs;  // empty: inputs stay on the device
};

}  // namespace longshore
