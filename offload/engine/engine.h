// Engine: one rank's training machinery: passes over the parts that a plan sizes. The library's
// front door for models of one's own. Owned by the run; one thread builds it and calls it.
//
// A pass is the plan's schedule, run by the executor over one stream for each lane: update -> fetch
// -> gather -> forward and backward -> reduce -> drain. trainer/train_step.cpp walks a step.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "device/thread_stream.h"
#include "offload/engine/engine_parts.h"
#include "offload/engine/pass_work.h"
#include "offload/engine/step_totals.h"
#include "offload/schedule/lane_ledger.h"
#include "offload/schedule/step_executor.h"
#include "shard/load_parameters.h"

namespace longshore {

// What tests and experiments change: the CPU device's links, the order in which its streams get on,
// and the tiers.
struct EmulatedDevice {
  LinkSpeeds links = {};
  std::optional<StreamDelays> delays = {};
  MakeTiers make_tiers = longshore::make_tiers;
};

class Engine {
 public:
  // Allocates everything that the plan fixes; opens and locks the state files of a plan with
  // drives, which belong to the run of `state_key`. `model` and the groups' communicators must
  // outlive the engine; a single rank has no groups. Parameters are zero until `load`.
  Engine(const Model* model, const TierPlan& plan, const AdamWOptions& adamw,
         const RankGroups& groups = {}, const RunKey& state_key = {},
         const EmulatedDevice& emulated = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sets all parameters, moments zero; updates are counted from the first.
  void load(const ParameterReader& read);

  const TierPlan& plan() const { return parts_.plan; }
  const ModelSpec& spec() const { return parts_.spec(); }
  RouterShape routers() const { return parts_.model->routers(); }
  const std::vector<FlatLayout>& layouts() const { return parts_.layouts; }
  const RankGroups& groups() const { return parts_.groups; }
  DeviceMemory& memory() { return parts_.device.memory(); }
  ShardStore& store() { return *parts_.tiers.state; }
  // What outlives the process: start, and the last commit. A pass commits what is staged with its
  // update.
  StepCommit& commits() { return parts_.commits; }
  // The state between passes, with no update pending. HOST WAIT: until a walk is done.
  StateSweep state_sweep();
  // What the rank moved between memory and drives since the engine was made.
  DriveTraffic drive_traffic() const;
  BatchStage& batches() { return parts_.batches; }
  CopyEngine& copies() { return parts_.device.copies(); }
  const UnitRunner& runner() const { return parts_.runner; }

  // The passes. Each is over on return; `batches` must live until then.
  // Forward, loss and backward; gradients are of loss_sum * scale and wait in host memory
  // afterwards. With optimizer.overlap = "forward" pending updates are applied on the way, with
  // "backward" the one that `update` describes, which makes `record`.
  LossSum train_pass(std::span<const MicroBatch> batches, double scale, const StepUpdate& update,
                     const std::optional<DurableStep>& record = {});
  // The rank's sums of squares of the last train pass, by unit.
  std::vector<double> take_squares() { return parts_.drain.finish(); }
  // The gradients in host memory are to be applied: now, or on the way of the next train pass. Not
  // with "backward". That makes `record`, which the same pass commits where the tier commits.
  void stage_update(const StepUpdate& update, const std::optional<DurableStep>& record = {});
  // Applies what is pending; before anything but a train pass reads parameters or state.
  void apply_updates();
  // Makes the state as it is durable as the record's: of a start, or of a step without an update.
  void commit(const DurableStep& record);
  LossSum evaluate(std::span<const MicroBatch> batches);
  // fp32 [positions, vocabulary]: the next token's scores at `positions` of one micro-batch.
  at::Tensor logits(const MicroBatch& batch, const at::Tensor& positions);

  // Updates applied so far: Adam's t, skipped steps not counted.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  // Bytes that updates read and wrote since the last call.
  Bytes take_update_bytes() { return parts_.optimizer.take_bytes(); }
  // Where the rank's time went since the last call, or since the engine was made.
  RankTimes take_times();
  // What the lanes did since the last call.
  LaneLedger take_ledger() { return std::exchange(ledger_, {}); }
  // Called after every pass with its schedule and when its operations ran.
  using Observer = std::function<void(const StepSchedule&, std::span<const OpTime>)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // Where the engine's thread blocked, by reason.
  const HostWaits& host_waits() const { return host_waits_; }
  void count_host_wait(const std::string& reason) { host_waits_.count(reason); }
  // What the rank handed to collectives, all groups together, since the engine was made.
  PayloadCounters::Totals payload() const;
  // The store's parameters changed: what the slots hold is stale.
  void advance_version();

 private:
  void make_lanes(const std::optional<StreamDelays>& delays);
  void run(const StepSchedule& schedule, const std::string& reason);
  void sweep(const StepSchedule& schedule, const StateSweep::Visitor& visit);
  // What slots are fetched from: units without a pending update are of the engine's version.
  void publish_settled_units();

  EngineParts parts_;
  PassWork work_;
  LaneStreams lanes_;  // end before what their work refers to
  std::unique_ptr<StepExecutor> executor_;
  Observer observer_;
  LaneLedger ledger_, times_ledger_;
  double waited_before_ = 0.0;
  HostWaits host_waits_;
  StateVersion version_;
  int64_t updates_ = 0;
  std::chrono::steady_clock::time_point times_begin_ = std::chrono::steady_clock::now();
};

}  // namespace longshore
