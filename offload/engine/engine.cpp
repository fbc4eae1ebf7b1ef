#include "offload/engine/engine.h"

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/processor.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

void check_topology(const RankGroups& groups, const TierPlan& plan) {
  LONGSHORE_CHECK(groups.topology == plan.topology) << "the plan is for other groups of ranks";
}

EngineDevice::Options device_options(const TierPlan& plan, const RankGroups& groups) {
  return {.kind = plan.device.kind,
          .gpu = groups.gpu,
          .collective = groups.shards != nullptr || groups.replicas != nullptr,
          .cap = plan.device.limit,
          .owned = plan.device.owned,
          .copy_buffers = plan.host.pinned.copy_buffers};
}

// Returns the layouts of the units whose gradients go to host memory.
std::vector<FlatLayout> drained_layouts(const EngineParts& parts) {
  return parts.plan.step.trains() ? parts.layouts : std::vector<FlatLayout>();
}

// Makes the states of the sequences that the plan decodes at the same time; empty if it decodes
// none.
std::optional<SequenceStates> make_states(const EngineParts& parts, PlannedBuffers& buffers) {
  const DecodeUse& decode = parts.plan.decode;
  if (decode.sequences == 0) return std::nullopt;
  const auto layers = parts.model->layer_states(
      {.longest = decode.longest, .compute = scalar_type_of(parts.plan.state.compute)});
  LONGSHORE_CHECK(layers.has_value()) << "the model cannot continue sequences";
  const Bytes bytes = decode.sequences * bytes_of_sequence(*layers);
  LONGSHORE_CHECK(bytes == parts.plan.device.states.bytes)
      << bytes << " bytes of states, planned " << parts.plan.device.states.bytes;
  return SequenceStates(*layers, static_cast<int32_t>(decode.sequences), decode.longest,
                        buffers.take_states(), parts.device.torch());
}

std::unique_ptr<NodeShards> make_node(const EngineParts& parts) {
  if (parts.plan.gather != GatherMode::kHost) return nullptr;
  LONGSHORE_CHECK(parts.tiers.shared != nullptr && parts.groups.host_shards != nullptr);
  return std::make_unique<NodeShards>(parts.tiers.shared, parts.layouts.size(),
                                      parts.groups.host_shards, parts.groups.check,
                                      parts.plan.host.pinned.state);
}

StageRing make_ring(const TierPlan& plan, PlannedBuffers& buffers) {
  std::vector<std::span<std::byte>> slots;
  for (int32_t i = 0; i < plan.device.slots; ++i) {
    // A piece of a tied head owns no parameters, so its slot has no bytes.
    slots.push_back(buffers.take(DeviceSlot(i)));
  }
  return StageRing(std::move(slots));
}

UnitRunner::Memory make_runner_memory(const EngineParts& parts, PlannedBuffers& buffers) {
  const TierPlan& plan = parts.plan;
  UnitRunner::Memory memory;
  memory.device = parts.device.torch();
  memory.trains = plan.step.trains();
  if (Communicator* const routers = parts.groups.routers; routers != nullptr) {
    memory.sum_over_ranks = [routers](std::span<double> pairs) {
      routers->all_reduce(pairs, {"the routers' load", std::nullopt}).wait();
    };
  }
  for (int32_t i = 0; i < plan.device.gradient_buffers; ++i) {
    memory.gradients.push_back(buffers.take(GradientBuffer(i)));
  }
  SlotVector<InputSlot, std::vector<std::span<std::byte>>> input_slots;
  for (int32_t i = 0; i < plan.device.input_slots; ++i) {
    input_slots.push_back(buffers.take_parts(InputSlot(i)));
  }
  const SharedInputGroups runs(parts.spec(), plan.step.kept_results);
  for (const UnitSpec& unit : parts.spec().units) {
    memory.waiting_gradients.push_back(buffers.take({BufferKind::kWaitingGradient, unit.id}));
    if (unit.id.value == 0) continue;
    std::vector<std::span<std::byte>>& places = memory.carry.inputs.emplace_back();
    if (!runs.names(unit.id)) continue;
    places = input_slots.empty() ? buffers.take_parts({BufferKind::kInput, unit.id})
                                 : input_slots[runs.of(unit.id)->slot(plan.device.input_slots)];
  }
  memory.carry.residents = buffers.take_parts(BufferKind::kResidentInputs);
  memory.carry.gradients = buffers.take_parts(BufferKind::kOutputGradient);
  memory.carry.results = plan.step.kept_results;
  return memory;
}

void check_routers(const EngineParts& parts) {
  LONGSHORE_CHECK(parts.model->routers().balance == 0.0 ||
                  (parts.groups.all != nullptr) == (parts.groups.routers != nullptr))
      << "the routers' load needs its own process group";
}

void check_tiers(const EngineParts& parts) {
  LONGSHORE_CHECK((parts.tiers.slots != nullptr) ==
                  (parts.plan.drives.tier.state || parts.plan.frozen_in_files))
      << "state on drives and frozen parameters in files need a store with slots";
  const HostPlan& host = parts.plan.host;
  LONGSHORE_CHECK(parts.tiers.state->host_bytes() == host.arena)
      << parts.tiers.state->host_bytes() << " host bytes, planned " << host.arena;
  const Bytes inputs = parts.tiers.inputs ? parts.tiers.inputs->host_bytes() : 0;
  LONGSHORE_CHECK(inputs == host.inputs)
      << inputs << " host bytes of inputs, planned " << host.inputs;
  LONGSHORE_CHECK(parts.host_gradients.host_bytes() == host.gradients)
      << parts.host_gradients.host_bytes() << " bytes of gradients, planned " << host.gradients;
  LONGSHORE_CHECK(parts.optimizer.scratch_bytes() == host.matrix_scratch)
      << parts.optimizer.scratch_bytes() << " bytes for matrices, planned " << host.matrix_scratch;
}

}  // namespace

EngineParts::EngineParts(Options options)
    : model(options.model),
      plan(options.plan),
      groups((check_topology(options.groups, plan), options.groups)),
      layouts(make_layouts(model->spec(), plan.topology.shard_ranks, plan.state.compute)),
      device(device_options(plan, groups), std::make_unique<CpuCopyEngine>(options.cpu_links)),
      pool(plan.optimizer_threads, groups.numa_node),
      tiers(options.make_tiers({.plan = plan,
                                .layouts = layouts,
                                .rank = groups.rank,
                                .run = options.state_key,
                                .pool = &pool,
                                .model = model->spec(),
                                .shard = groups.shard()})),
      commits(tiers.durable, groups.all),
      host_gradients(drained_layouts(*this),
                     {.dtype = plan.state.drain, .ring = plan.host.gradient_ring},
                     plan.host.pinned.gradients, pool),
      node(make_node(*this)),
      buffers(&plan, &device.memory()),
      ring(make_ring(plan, buffers)),
      prefetcher({.store = tiers.state.get(),
                  .slots = tiers.slots,
                  .ring = &ring,
                  .copies = &device.copies(),
                  .shards = groups.gathers,
                  .layouts = &layouts,
                  .shard = groups.shard(),
                  .node = node.get()}),
      batches(buffers.take(BufferKind::kBatch), static_cast<int32_t>(plan.step.micro_batches),
              plan.step.positions, model->tokens_read_as(), &device.copies(), device.torch()),
      states(make_states(*this, buffers)),
      runner(model, &layouts, plan.state.compute, plan.step.kept_graphs,
             make_runner_memory(*this, buffers)),
      reducer(groups, &layouts, plan.reduce, buffers.take(BufferKind::kReduceScratch)),
      drain(&host_gradients, &device.copies(), drained_layouts(*this), groups.shard(),
            buffers.take(BufferKind::kDrainStaging), plan.device.kind,
            device.make_gradient_sums(&pool)),
      optimizer(tiers.state.get(), &host_gradients, layouts, model->spec(), groups.shard(),
                std::move(options.rule), &pool) {
  if (tiers.inputs) inputs.emplace(tiers.inputs.get(), &device.copies());
  check_tiers(*this);
  check_routers(*this);
  buffers.check_taken();
}

void PassWork::run(const Op& op) {
  switch (op.kind) {
    case OpKind::kReadState:
      parts_.tiers.slots->read_state(op.unit, op.slot<StateSlot>());
      return;
    case OpKind::kReadParameters:
      parts_.tiers.slots->read_parameters(op.unit, op.slot<ParameterSlot>());
      return;
    case OpKind::kWriteState:
      parts_.tiers.slots->write_state(op.unit, op.slot<StateSlot>());
      return;
    case OpKind::kCommit:
      parts_.commits.run();
      return;
    case OpKind::kUpdate:
      update(op);
      return;
    case OpKind::kFetch:
      // With updates in backward the pending update is this step's own and follows the fetch.
      LONGSHORE_CHECK(updates_in_backward() || !parts_.optimizer.pending(op.unit))
          << "unit " << op.unit << " is fetched before its update";
      parts_.prefetcher.fetch(op.placed().front(), op.find<ParameterSlot>());
      return;
    case OpKind::kGather:
      parts_.prefetcher.gather(op.placed().front());
      return;
    case OpKind::kReadInput:
    case OpKind::kLoadInput:
    case OpKind::kSaveInput:
    case OpKind::kWriteInput:
      move_input(op);
      return;
    case OpKind::kForward:
    case OpKind::kBackward:
      compute(op);
      return;
    case OpKind::kReduce:
      reduce(op);
      return;
    case OpKind::kDrain:
      drain(op);
      return;
  }
}

void PassWork::update(const Op& op) {
  SlotOwners<HostGradientSlot>& ring = parts_.host_gradients.ring();
  const std::optional<HostGradientSlot> gradient = op.find<HostGradientSlot>();
  const std::optional<StateSlot> state = op.find<StateSlot>();
  const std::optional<ParameterSlot> parameters = op.find<ParameterSlot>();
  if (gradient) ring.check(*gradient, op.unit);
  const bool updated = parts_.optimizer.pending(op.unit);
  if (updated) parts_.optimizer.update(op.unit, *parts_.tiers.lease_state(op.unit, state));
  if (parameters) parts_.tiers.slots->pass_parameters(op.unit, *state, *parameters);
  if (gradient) ring.free(*gradient, op.unit);
  // With updates in backward the unit belongs to the next version, which advance_version publishes.
  if (updated && parts_.node != nullptr && !updates_in_backward()) {
    parts_.node->publish(op.unit, parts_.prefetcher.version());
  }
}

void PassWork::move_input(const Op& op) {
  const bool fills = op.kind == OpKind::kSaveInput || op.kind == OpKind::kReadInput;
  const std::optional<StagingSlot> staging = op.find<StagingSlot>();
  if (staging && fills) staging_.claim(*staging, op.unit);
  if (staging && !fills) staging_.check(*staging, op.unit);
  const int32_t micro_batches = parts_.runner.micro_batches();
  switch (op.kind) {
    case OpKind::kSaveInput:
      parts_.inputs->save(op.unit, staging, parts_.runner.carry(), micro_batches);
      break;
    case OpKind::kWriteInput:
      parts_.inputs->tier().write(op.unit, op.slot<StagingSlot>(), micro_batches);
      break;
    case OpKind::kReadInput:
      parts_.inputs->tier().read(op.unit, op.slot<StagingSlot>(), micro_batches);
      break;
    default:
      parts_.inputs->load(op.unit, staging, parts_.runner.carry(), micro_batches);
  }
  if (staging && !fills) staging_.free(*staging, op.unit);
}

void PassWork::compute(const Op& op) {
  std::vector<UnitLease> leases;
  for (const Placed& placed : op.placed()) {
    leases.push_back(parts_.ring.lease(placed, parts_.prefetcher.version()));
  }
  if (op.kind == OpKind::kForward) {
    parts_.runner.forward(op.unit, leases);
    parts_.device.finish("forward of " + parts_.spec().unit(op.unit).name);
    return;
  }
  const std::optional<GradientBuffer> gradient = op.find<GradientBuffer>();
  if (gradient) gradients_.claim(*gradient, op.unit);
  parts_.runner.backward(op.unit, leases, gradient);
  parts_.device.finish("backward of " + parts_.spec().unit(op.unit).name);
}

void PassWork::reduce(const Op& op) {
  const std::optional<GradientBuffer> gradient = op.find<GradientBuffer>();
  if (gradient) gradients_.check(*gradient, op.unit);
  parts_.reducer.reduce(op.unit, parts_.runner.sums(op.unit, gradient));
}

void PassWork::drain(const Op& op) {
  const std::optional<GradientBuffer> gradient = op.find<GradientBuffer>();
  const std::optional<HostGradientSlot> host = op.find<HostGradientSlot>();
  if (gradient) gradients_.check(*gradient, op.unit);
  if (host) parts_.host_gradients.ring().claim(*host, op.unit);
  const double squares = parts_.drain.drain(op.unit, parts_.runner.sums(op.unit, gradient));
  if (gradient) gradients_.free(*gradient, op.unit);
  if (!updates_in_backward() || std::isfinite(squares)) return;
  throw NonFiniteError("a gradient of unit " + parts_.spec().unit(op.unit).name +
                       " is not finite; with optimizer.overlap = \"backward\" units above it are "
                       "updated already, so the run ends; start it again from the last checkpoint, "
                       "lower optimizer.lr, check the data, or set optimizer.overlap = "
                       "\"forward\", which skips such a step");
}

namespace {

// The operations of a state sweep. Lives as long as the sweep; called by the lanes.
class SweepWork final : public StepWork {
 public:
  // Both must outlive the work.
  SweepWork(const Tiers* tiers, const StateSweep::Visitor& visit) : tiers_(tiers), visit_(visit) {}

  void run(const Op& op) override {
    switch (op.kind) {
      case OpKind::kReadState:
        return tiers_->slots->read_state(op.unit, op.slot<StateSlot>());
      case OpKind::kUpdate: {
        const auto lease = tiers_->lease_state(op.unit, op.find<StateSlot>());
        return visit_(op.unit, *lease);
      }
      case OpKind::kWriteState:
        return tiers_->slots->write_state(op.unit, op.slot<StateSlot>());
      default:
        LONGSHORE_CHECK(false) << name_of(op.kind) << " in a sweep of the state";
    }
  }

 private:
  const Tiers* tiers_;
  const StateSweep::Visitor& visit_;
};

}  // namespace

Engine::Engine(const Model* model, const TierPlan& plan, std::unique_ptr<UpdateRule> rule,
               const RankGroups& groups, const RunKey& state_key, const EmulatedDevice& emulated)
    : parts_({.model = model,
              .plan = plan,
              .rule = std::move(rule),
              .groups = groups,
              .state_key = state_key,
              .cpu_links = emulated.links,
              .make_tiers = emulated.make_tiers}),
      work_(&parts_) {
  make_lanes(emulated.delays);
}

void Engine::make_lanes(const std::optional<StreamDelays>& delays) {
  lanes_ = make_lane_streams([this, &delays](Lane lane, const std::string& name) {
    const bool of_host = lane == Lane::kUpdate || lane == Lane::kRead || lane == Lane::kWrite;
    // Copies and collectives have priority over kernels, because the device would idle behind them.
    const bool urgent = lane != Lane::kCompute;
    // These lanes compute on the host for long; the others copy, or launch work on the device.
    const bool works = lane == Lane::kUpdate || (lane == Lane::kCompute && !parts_.device.cuda());
    const auto prepare = [this, of_host, urgent, works] {
      if (!works) ask_for_short_slices();
      if (!of_host) parts_.device.adopt_lane(urgent);
    };
    return std::make_unique<ThreadStream>(name, delays, prepare);
  });
  executor_ = std::make_unique<StepExecutor>(&lanes_, parts_.groups.report_failure);
}

void Engine::run(const StepSchedule& schedule, const std::string& reason) {
  in_slots_.reset();
  const double begin = executor_->now();
  host_waits_.count(reason);
  parts_.device.finish("what comes before " + reason);  // copies of batches, clearing of sums
  executor_->run(schedule, work_);
  const LaneLedger ledger = account(schedule, executor_->times(), begin);
  ledger_ += ledger;
  times_ledger_ += ledger;
  if (observer_) observer_(schedule, executor_->times());
}

void Engine::run_forward(const std::string& reason) {
  const PassSchedules& schedules = parts_.plan.step.schedules;
  const bool again = !schedules.forward_again.ops.empty() && in_slots_ == version_;
  run(again ? schedules.forward_again : schedules.forward, reason);
  in_slots_ = version_;
}

StateSweep Engine::state_sweep() {
  return {
      .options = parts_.tiers.state->options(),
      .each = [this](const auto& visit) { sweep(parts_.plan.step.schedules.sweep, visit); },
      .each_trained =
          [this](const auto& visit) { sweep(parts_.plan.step.schedules.sweep_trained, visit); }};
}

void Engine::sweep(const StepSchedule& schedule, const StateSweep::Visitor& visit) {
  LONGSHORE_CHECK(!parts_.optimizer.pending()) << "an update is pending";
  in_slots_.reset();  // the visitor may change parameters
  SweepWork work(&parts_.tiers, visit);
  // A separate executor runs the sweep: the caller reports the visitor's exceptions to other ranks.
  StepExecutor(&lanes_).run(schedule, work);
}

LossSum Engine::train_pass(std::span<const MicroBatch> batches, double scale,
                           const StepUpdate& update, const std::optional<DurableStep>& record) {
  LONGSHORE_CHECK(parts_.plan.step.trains()) << "the plan is for decoding alone";
  parts_.runner.begin_step(batches, scale);
  if (parts_.plan.step.overlap == UpdateOverlap::kBackward) {
    parts_.optimizer.stage(update);
    updates_ = update.update;
    if (record) parts_.commits.stage(*record);
  }
  const bool first =
      parts_.plan.step.overlap == UpdateOverlap::kForward && !parts_.optimizer.pending();
  // HOST WAIT: the step's totals need every gradient.
  run(first ? parts_.plan.step.schedules.first : parts_.plan.step.schedules.train,
      "the train pass");
  return parts_.runner.loss();
}

void Engine::stage_update(const StepUpdate& update, const std::optional<DurableStep>& record) {
  LONGSHORE_CHECK(parts_.plan.step.overlap != UpdateOverlap::kBackward) << "it is applied already";
  parts_.optimizer.stage(update);
  updates_ = update.update;
  if (record) parts_.commits.stage(*record);
  if (parts_.plan.step.overlap == UpdateOverlap::kNone) apply_updates();
}

void Engine::apply_updates() {
  if (!parts_.optimizer.pending()) return;
  // HOST WAIT: the caller reads parameters or state next.
  run(parts_.plan.step.schedules.flush, "updates");
}

void Engine::commit(const DurableStep& record) {
  LONGSHORE_CHECK(!parts_.optimizer.pending()) << "an update is pending";
  parts_.commits.stage(record);
  // HOST WAIT: the caller may report the step as saved.
  run(parts_.plan.step.schedules.commit, "a commit");
}

LossSum Engine::evaluate(std::span<const MicroBatch> batches) {
  apply_updates();
  parts_.runner.begin_evaluation(batches);
  run_forward("an evaluation pass");
  return parts_.runner.loss();
}

at::Tensor Engine::logits(const MicroBatch& batch, const at::Tensor& positions) {
  if (batch.continued != nullptr) check_continued(batch);
  apply_updates();
  parts_.runner.begin_logits(batch, positions);
  run_forward("a generation pass");
  return parts_.runner.logits();
}

void Engine::check_continued(const MicroBatch& batch) const {
  const ContinuedSequences& continued = *batch.continued;
  LONGSHORE_CHECK(parts_.states && continued.states == &*parts_.states)
      << "the sequences have other states than the engine's";
  const size_t documents = batch.document_starts.size() - 1;
  LONGSHORE_CHECK(continued.slots.size() == documents && continued.before.size() == documents)
      << documents << " documents continue " << continued.slots.size() << " sequences";
  std::vector<bool> used(static_cast<size_t>(continued.states->sequences()), false);
  for (size_t i = 0; i < documents; ++i) {
    const auto slot = static_cast<size_t>(continued.slots[i].value);
    LONGSHORE_CHECK(slot < used.size() && !used[slot]) << "sequence " << continued.slots[i];
    used[slot] = true;
    const int64_t rows = batch.document_starts[i + 1] - batch.document_starts[i];
    LONGSHORE_CHECK(continued.before[i] >= 0 &&
                    continued.before[i] + rows <= continued.states->longest())
        << rows << " positions behind " << continued.before[i] << " of a sequence, planned "
        << continued.states->longest();
  }
}

DriveTraffic Engine::drive_traffic() const {
  DriveTraffic sum;
  sum += parts_.tiers.state->traffic();
  if (parts_.tiers.inputs) sum += parts_.tiers.inputs->traffic();
  return sum;
}

void Engine::publish_settled_units() {
  if (!parts_.node) return;
  for (const UnitSpec& unit : spec().units) {
    if (!parts_.optimizer.pending(unit.id)) parts_.node->publish(unit.id, version_);
  }
}

void Engine::load(const ParameterReader& read) {
  load_parameters(state_sweep(), spec(), parts_.layouts, parts_.groups.shard(), read,
                  [this](int64_t blocks, const std::function<void(int64_t)>& work) {
                    parts_.pool.for_each_block(blocks, work);
                  });
  updates_ = 0;
  advance_version();
}

void Engine::read_shard(Rank shard, const ParameterReader& read, const PackedReader& read_packed) {
  read_parameters(spec(), parts_.layouts, shard, read, read_packed,
                  [this](int64_t blocks, const std::function<void(int64_t)>& work) {
                    parts_.pool.for_each_block(blocks, work);
                  });
}

PayloadCounters::Totals Engine::payload() const {
  PayloadCounters::Totals totals;
  const RankGroups& groups = parts_.groups;
  Communicator* const gathers = groups.gathers == groups.shards ? nullptr : groups.gathers;
  for (const Communicator* group : {groups.all, groups.shards, gathers, groups.replicas}) {
    if (group == nullptr) continue;
    for (const auto& [key, count] : group->counters().total().counts) totals.counts[key] += count;
  }
  return totals;
}

RankTimes Engine::take_times() {
  const auto now = std::chrono::steady_clock::now();
  RankTimes times;
  times.seconds = std::chrono::duration<double>(now - times_begin_).count();
  const LaneLedger ledger = std::exchange(times_ledger_, {});
  times.computed = ledger.of(Lane::kCompute).busy_seconds;
  times.updated = ledger.of(Lane::kUpdate).busy_seconds;
  times.waited = ledger.of(Lane::kGather).stall_seconds + ledger.of(Lane::kReduce).stall_seconds;
  if (parts_.groups.all != nullptr) {
    const double waited = parts_.groups.all->counters().total().all().waited_seconds;
    times.waited += waited - std::exchange(waited_before_, waited);
  }
  times_begin_ = now;
  return times;
}

void Engine::advance_version() {
  version_.value += 1;
  parts_.prefetcher.set_version(version_);
  publish_settled_units();
}

}  // namespace longshore
