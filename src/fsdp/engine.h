// Engine: one rank's training machinery, assembled as a plan says: device memory, the host store,
// the stage ring, the runner, the reducer, the drain and the optimizer. The library's front door
// for models of one's own. Owned by the run; one thread builds it and calls it, and stays its
// compute thread.
//
// The way of a step: batches -> runner (forward, loss, backward; units come from the store through
// the ring, gathered) -> reducer -> drain -> optimizer -> store. trainer/train_step.cpp walks it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "device/counting_allocator.h"
#include "device/device_memory.h"
#include "fsdp/batch_stage.h"
#include "fsdp/step_totals.h"
#include "fsdp/unit_runner.h"
#include "nvme/nvme_store.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/plan/tier_plan.h"
#include "offload/staging/grad_drain.h"
#include "offload/staging/grad_reducer.h"
#include "offload/staging/prefetcher.h"
#include "pinned/pinned_store.h"
#include "shard/load_parameters.h"

namespace longshore {

// The plan's bounds of every unit's temporaries, as the model gives them.
UnitCosts unit_costs(const Model& model, DType compute, int threads);

class Engine {
 public:
  // Allocates everything that the plan fixes; opens and locks the state files of a plan with
  // drives, which belong to the run of `state_key`. `model` and the groups' communicators must
  // outlive the engine; a single rank has no groups. Parameters are zero until `load`.
  Engine(const Model* model, const TierPlan& plan, const AdamWOptions& adamw,
         const RankGroups& groups = {}, const RunKey& state_key = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sets all parameters, moments zero; updates are counted from the first.
  void load(const ParameterReader& read);

  const TierPlan& plan() const { return plan_; }
  const ModelSpec& spec() const { return model_->spec(); }
  const std::vector<FlatLayout>& layouts() const { return layouts_; }
  const RankGroups& groups() const { return groups_; }
  DeviceMemory& memory() { return memory_; }
  ShardStore& store() { return *store_; }
  // The store where it is on drives, else null.
  NvmeStore* drives() { return drives_; }
  BatchStage& batches() { return *batches_; }
  UnitRunner& runner() { return *runner_; }
  GradReducer& reducer() { return *reducer_; }
  GradDrain& drain() { return *drain_; }
  OptimizerPipeline& optimizer() { return *optimizer_; }
  CopyEngine& copies() { return copies_; }

  // Updates applied so far: Adam's t, skipped steps not counted.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  // Counts one more, and returns its number.
  int64_t count_update() { return ++updates_; }
  // Where the rank's time went since the last call, or since the engine was made.
  RankTimes take_times();
  // What the rank handed to collectives, all groups together, since the engine was made.
  PayloadCounters::Totals payload() const;
  // The parameters at home changed: what the slots hold is stale.
  void advance_version();

 private:
  std::span<std::byte> carve(const PlannedBuffer& buffer);
  std::span<std::byte> carve_named(const std::string& name);
  // One for each micro-batch; empty ones where the plan has no such buffer.
  std::vector<std::span<std::byte>> carve_parts(const std::string& name);
  std::span<std::byte> carve_if_planned(const std::string& name);
  std::unique_ptr<ShardStore> make_store(const RunKey& state_key);
  StageRing make_ring();
  Prefetcher make_prefetcher();
  UnitRunner::Memory make_runner_memory();

  const Model* model_;
  TierPlan plan_;
  RankGroups groups_;
  std::vector<FlatLayout> layouts_;
  DeviceMemory memory_;
  WorkspaceBudget budget_;
  WorkerPool pool_;
  NvmeStore* drives_ = nullptr;  // store_, where it is one; before it, which sets it
  std::unique_ptr<ShardStore> store_;
  CpuCopyEngine copies_;
  StageRing ring_;
  Prefetcher prefetcher_;
  std::unique_ptr<BatchStage> batches_;
  std::unique_ptr<UnitRunner> runner_;
  std::unique_ptr<GradReducer> reducer_;
  std::unique_ptr<GradDrain> drain_;
  std::unique_ptr<OptimizerPipeline> optimizer_;
  StateVersion version_;
  int64_t updates_ = 0;
  std::chrono::steady_clock::time_point times_begin_ = std::chrono::steady_clock::now();
  double waited_before_ = 0.0;
};

}  // namespace longshore
