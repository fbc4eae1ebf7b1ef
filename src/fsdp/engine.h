// Engine: one rank's training machinery, assembled as a plan says: device memory, the host store,
// the stage ring, the runner, the drain and the optimizer. The library's front door for models of
// one's own. Owned by the run; one thread builds it and calls it, and stays its compute thread.
//
// The way of a step: batches -> runner (forward, loss, backward; units come from the store through
// the ring) -> drain -> optimizer -> store. trainer/train_step.cpp walks it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/counting_allocator.h"
#include "device/device_memory.h"
#include "fsdp/batch_stage.h"
#include "fsdp/unit_runner.h"
#include "offload/grad_drain.h"
#include "offload/ledger.h"
#include "offload/optimizer_pipeline.h"
#include "offload/prefetcher.h"
#include "offload/tier_plan.h"
#include "pinned/pinned_store.h"
#include "shard/load_parameters.h"

namespace longshore {

// The plan's bounds of every unit's temporaries, as the model gives them.
UnitCosts unit_costs(const Model& model, DType compute, int threads);

class Engine {
 public:
  // Allocates everything that the plan fixes. `model` must outlive the engine. Parameters are zero
  // until `load`.
  Engine(const Model* model, const TierPlan& plan, const AdamWOptions& adamw);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sets all parameters, moments zero; updates are counted from the first.
  void load(const ParameterReader& read);

  const TierPlan& plan() const { return plan_; }
  const ModelSpec& spec() const { return model_->spec(); }
  const std::vector<FlatLayout>& layouts() const { return layouts_; }
  DeviceMemory& memory() { return memory_; }
  ShardStore& store() { return store_; }
  BatchStage& batches() { return *batches_; }
  UnitRunner& runner() { return *runner_; }
  GradDrain& drain() { return *drain_; }
  OptimizerPipeline& optimizer() { return *optimizer_; }
  Ledger& ledger() { return ledger_; }
  CopyEngine& copies() { return copies_; }

  // Updates applied so far: Adam's t, skipped steps not counted.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  // Counts one more, and returns its number.
  int64_t count_update() { return ++updates_; }
  // The parameters at home changed: what the slots hold is stale.
  void advance_version();

 private:
  std::span<std::byte> carve(const PlannedBuffer& buffer);
  std::span<std::byte> carve_named(const std::string& name);
  std::vector<std::span<std::byte>> carve_parts(const std::string& name);
  StageRing make_ring();
  UnitRunner::Memory make_runner_memory();

  const Model* model_;
  TierPlan plan_;
  std::vector<FlatLayout> layouts_;
  DeviceMemory memory_;
  WorkspaceBudget budget_;
  WorkerPool pool_;
  PinnedStore store_;
  CpuCopyEngine copies_;
  Ledger ledger_;
  StageRing ring_;
  Prefetcher prefetcher_;
  std::unique_ptr<BatchStage> batches_;
  std::unique_ptr<UnitRunner> runner_;
  std::unique_ptr<GradDrain> drain_;
  std::unique_ptr<OptimizerPipeline> optimizer_;
  StateVersion version_;
  int64_t updates_ = 0;
};

}  // namespace longshore
