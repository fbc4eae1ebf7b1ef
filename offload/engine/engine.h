// Engine: one rank's training machinery, which runs passes over buffers that a plan sizes. It is
// the library's entry point for custom models. Owned by the run; one thread builds and calls it.
//
// A pass is the plan's schedule, run by the executor with one stream per track: update -> fetch ->
// gather -> forward and backward -> reduce -> drain. offload/engine/train_step.cpp shows a step.
// The class Engine is at the end; EngineParts and PassWork are what it is made of.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "device/thread_stream.h"
#include "offload/engine/batch_stage.h"
#include "offload/engine/carry_store.h"
#include "offload/engine/engine_device.h"
#include "offload/engine/step_totals.h"
#include "offload/engine/tiers.h"
#include "offload/engine/unit_runner.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/plan/tier_plan.h"
#include "offload/schedule/step_executor.h"
#include "offload/staging/gradient_drain.h"
#include "offload/staging/prefetcher.h"
#include "shard/load_parameters.h"
#include "shard/slots.h"

namespace longshore {

// EngineParts: all objects of one rank that a pass uses, made and sized by a plan: device memory,
// tiers, slots, and the parts that run units, sum, drain and update. Owned by the engine and made
// by its thread; lanes use it through PassWork in schedule order.

struct EngineParts {
  // The inputs of all parts. `model` and the groups' communicators must outlive the parts.
  struct Options {
    const Model* model = nullptr;
    const TierPlan& plan;
    std::unique_ptr<UpdateRule> rule;
    const RankGroups& groups;
    const RunKey& state_key;
    LinkSpeeds cpu_links = {};  // link speeds of the CPU device
    const MakeTiers& make_tiers;
  };
  // Allocates everything in the plan, and checks that the sizes match it exactly.
  explicit EngineParts(Options options);
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
  PlannedBuffers buffers;
  StageRing ring;
  Prefetcher prefetcher;
  BatchStage batches;
  std::optional<SequenceStates> states;  // empty: nothing is decoded
  UnitRunner runner;
  GradientReducer reducer;
  GradientDrain drain;
  OptimizerPipeline optimizer;
  std::optional<InputOffload> inputs;  // empty: inputs stay on the device
};

// PassWork: runs the operations of a schedule with the engine's parts. Owned by the engine; lanes
// call it.

class PassWork final : public StepWork {
 public:
  // The parts must outlive the work.
  explicit PassWork(EngineParts* parts)
      : parts_(*parts),
        gradients_("gradient buffer", parts->plan.device.gradient_buffers),
        staging_("staging slot", kInputStagingSlots) {}

  void run(const Op& op) override;

 private:
  void update(const Op& op);
  void move_input(const Op& op);
  void compute(const Op& op);
  void reduce(const Op& op);
  void drain(const Op& op);

  // With kBackward, updates precede the norm of all gradients, so a non-finite one ends the run.
  bool updates_in_backward() const { return parts_.plan.step.overlap == UpdateOverlap::kBackward; }

  EngineParts& parts_;
  SlotOwners<GradientBuffer> gradients_;
  SlotOwners<StagingSlot> staging_;
};

// The tiers, and for tests link speeds of the CPU device and delays of its streams.
struct EmulatedDevice {
  LinkSpeeds links = {};
  std::optional<StreamDelays> delays = {};
  MakeTiers make_tiers = longshore::make_tiers;
};

class Engine {
 public:
  // Allocates everything in the plan. A plan with drives opens and locks the state files of the run
  // `state_key`. `model` and the groups' communicators must outlive the engine; a single rank has
  // no groups. The plan's state has the regions of `rule`. Parameters are zero until `load`.
  Engine(const Model* model, const TierPlan& plan, std::unique_ptr<UpdateRule> rule,
         const RankGroups& groups = {}, const RunKey& state_key = {},
         const EmulatedDevice& emulated = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sets all parameters, zeroes the update rule's state, and counts updates from the first.
  void load(const ParameterReader& read);
  // Calls `read` as `load` does on the rank that holds this shard, or `read_packed` for parameters
  // that are packed, and changes nothing.
  void read_shard(Rank shard, const ParameterReader& read, const PackedReader& read_packed);

  const TierPlan& plan() const { return parts_.plan; }
  const ModelSpec& spec() const { return parts_.spec(); }
  RouterShape routers() const { return parts_.model->routers(); }
  const std::vector<FlatLayout>& layouts() const { return parts_.layouts; }
  const RankGroups& groups() const { return parts_.groups; }
  DeviceMemory& memory() { return parts_.device.memory(); }
  ShardStore& store() { return *parts_.tiers.state; }
  // Durable steps: the start and the last commit. A pass commits the staged record with its update.
  StepCommit& commits() { return parts_.commits; }
  // Returns the state between passes; no update may be pending. HOST WAIT: until a sweep is done.
  StateSweep state_sweep();
  // Returns bytes moved between memory and drives since the engine was made.
  DriveTraffic drive_traffic() const;
  BatchStage& batches() { return parts_.batches; }
  CopyEngine& copies() { return parts_.device.copies(); }
  const UnitRunner& runner() const { return parts_.runner; }
  // See UnitRunner; between passes.
  void set_router_corrections(std::vector<float> corrections) {
    parts_.runner.set_router_corrections(std::move(corrections));
  }
  void move_router_corrections(std::span<const double> sums) {
    parts_.runner.move_router_corrections(sums);
  }

  // The passes follow. Each is complete on return; `batches` must live until then.
  // Runs forward, loss and backward; gradients of loss_sum * scale are then in host memory. With
  // optimizer.overlap = "forward" the pass applies pending updates; with "backward" it applies
  // `update`, whose durable step is `record`.
  LossSum train_pass(std::span<const MicroBatch> batches, double scale, const StepUpdate& update,
                     const std::optional<DurableStep>& record = {});
  // Returns the rank's sums of squares of the last train pass, by unit.
  std::vector<double> take_squares() { return parts_.drain.finish(); }
  // Stages the update with the gradients in host memory, to be applied now or in the next train
  // pass. Not with overlap = "backward". The pass that applies it commits `record` where the tier
  // commits.
  void stage_update(const StepUpdate& update, const std::optional<DurableStep>& record = {});
  // Applies pending updates; call it before anything but a train pass reads parameters or state.
  void apply_updates();
  // Commits the current state as `record`: at a start, or for a step without an update.
  void commit(const DurableStep& record);
  LossSum evaluate(std::span<const MicroBatch> batches);
  // Returns the last evaluation's log-probabilities of documents, by micro-batch, where the batches
  // have pairs.
  const std::vector<std::vector<double>>& document_logps() const {
    return parts_.runner.document_logps();
  }
  // Returns fp32 [positions, vocabulary]: next-token scores at `positions` of one micro-batch. If
  // `batch` continues sequences, it has their new rows alone, and the call extends their states.
  at::Tensor logits(const MicroBatch& batch, const at::Tensor& positions);
  // Returns the states of the sequences that the plan decodes at the same time; null if it decodes
  // none. Other passes leave them as they are, apart from a train pass: a plan that also trains
  // keeps states and gradients in the same device bytes.
  SequenceStates* sequence_states() { return parts_.states ? &*parts_.states : nullptr; }

  // Returns the number of applied updates: Adam's t, without skipped steps.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  // Returns bytes that updates read and wrote since the last call.
  Bytes take_update_bytes() { return parts_.optimizer.take_bytes(); }
  // Returns the rank's times since the last call, or since the engine was made.
  RankTimes take_times();
  // Returns the busy and stall times of lanes since the last call.
  LaneLedger take_ledger() { return std::exchange(ledger_, {}); }
  // The observer is called after every pass with its schedule and the times of its operations.
  using Observer = std::function<void(const StepSchedule&, std::span<const OpTime>)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // Returns counts of the engine thread's waits, by reason.
  const HostWaits& host_waits() const { return host_waits_; }
  void count_host_wait(const std::string& reason) { host_waits_.count(reason); }
  // Returns the payload that the rank gave to collectives of all groups since the engine was made.
  PayloadCounters::Totals payload() const;
  // Marks slot contents as stale, after the store's parameters changed.
  void advance_version();

 private:
  void make_lanes(const std::optional<StreamDelays>& delays);
  void run(const StepSchedule& schedule, const std::string& reason);
  // Runs a forward pass, without fetches where every unit is in its slot already.
  void run_forward(const std::string& reason);
  void check_continued(const MicroBatch& batch) const;
  void sweep(const StepSchedule& schedule, const StateSweep::Visitor& visit);
  // Publishes units without a pending update at the engine's version, for fetches by other ranks.
  void publish_settled_units();

  EngineParts parts_;
  PassWork work_;
  LaneStreams lanes_;  // destroyed before the objects that their work uses
  std::unique_ptr<StepExecutor> executor_;
  Observer observer_;
  LaneLedger ledger_, times_ledger_;
  double waited_before_ = 0.0;
  HostWaits host_waits_;
  StateVersion version_;
  // Set while the last pass was a forward pass: the version of the units that it left in slots.
  std::optional<StateVersion> in_slots_;
  int64_t updates_ = 0;
  std::chrono::steady_clock::time_point times_begin_ = std::chrono::steady_clock::now();
};

}  // namespace longshore
