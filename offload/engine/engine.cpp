#include "offload/engine/engine.h"

#include "base/errors.h"
#include "offload/engine/walk_work.h"

namespace longshore {

Engine::Engine(const Model* model, const TierPlan& plan, const AdamWOptions& adamw,
               const RankGroups& groups, const RunKey& state_key, const EmulatedDevice& emulated)
    : model_(model),
      plan_(plan),
      groups_(groups),
      layouts_(make_layouts(model->spec(), plan.topology.shard_ranks)),
      device_({.kind = plan.device.kind,
               .gpu = groups.gpu,
               .collective = groups.shards != nullptr || groups.replicas != nullptr,
               .cap = plan.device.limit,
               .owned = plan.device.owned},
              std::make_unique<CpuCopyEngine>(emulated.links)),
      pool_(plan.optimizer_threads),
      tiers_(emulated.make_tiers({plan_, layouts_, groups.rank, state_key, &pool_})),
      commits_(tiers_.state.get(), groups.all),
      gradient_home_(layouts_, {.dtype = plan.state.drain, .ring = plan.host.gradient_ring},
                     plan.device.kind == DeviceKind::kCuda, pool_),
      node_(make_node()),
      ring_(make_ring()),
      prefetcher_(make_prefetcher()) {
  LONGSHORE_CHECK(groups.topology == plan.topology) << "the plan is for other groups of ranks";
  check_tiers();
  LONGSHORE_CHECK(gradient_home_.host_bytes() == plan.host.gradients)
      << gradient_home_.host_bytes() << " bytes of gradients, planned " << plan.host.gradients;
  const auto micro_batches = static_cast<int32_t>(plan.step.micro_batches);
  batches_ = std::make_unique<BatchStage>(carve_named("batch"), micro_batches, plan.step.positions,
                                          &device_.copies(), device_.torch());
  runner_ = std::make_unique<UnitRunner>(model, &layouts_, plan.state.compute,
                                         plan.step.kept_graphs, make_runner_memory());
  reducer_ = std::make_unique<GradReducer>(groups_, &layouts_, plan.reduce,
                                           carve_if_planned("reduce_scratch"));
  drain_ = std::make_unique<GradDrain>(&gradient_home_, &device_.copies(), layouts_,
                                       groups_.shard(), carve_if_planned("drain_staging"),
                                       plan.device.kind, device_.make_gradient_sums(&pool_));
  optimizer_ = std::make_unique<OptimizerPipeline>(tiers_.state.get(), &gradient_home_, layouts_,
                                                   model->spec(), groups_.shard(), adamw, &pool_);
  if (tiers_.inputs) inputs_.emplace(tiers_.inputs.get(), &device_.copies());
  device_.memory().check_carved();
  work_ = std::make_unique<PassWork>(
      PassWork::Parts{.device = &device_,
                      .store = tiers_.state.get(),
                      .commit = &commits_,
                      .ring = &ring_,
                      .prefetcher = &prefetcher_,
                      .runner = runner_.get(),
                      .reducer = reducer_.get(),
                      .drain = drain_.get(),
                      .optimizer = optimizer_.get(),
                      .gradient_home = &gradient_home_,
                      .inputs = inputs_ ? &*inputs_ : nullptr,
                      .node = node_.get(),
                      .model = &model->spec(),
                      .gradient_buffers = plan.device.gradient_buffers,
                      .updates_in_backward = plan.step.overlap == UpdateOverlap::kBackward});
  make_lanes(emulated.delays);
}

void Engine::check_tiers() const {
  LONGSHORE_CHECK(tiers_.state->host_bytes() == plan_.host.arena)
      << tiers_.state->host_bytes() << " host bytes, planned " << plan_.host.arena;
  const Bytes inputs = tiers_.inputs ? tiers_.inputs->host_bytes() : 0;
  LONGSHORE_CHECK(inputs == plan_.host.inputs)
      << inputs << " host bytes of inputs, planned " << plan_.host.inputs;
}

void Engine::make_lanes(const std::optional<StreamDelays>& delays) {
  lanes_ = make_lane_streams([this, &delays](Lane lane, const std::string& name) {
    std::function<void()> prepare;
    const bool of_host = lane == Lane::kUpdate || lane == Lane::kRead || lane == Lane::kWrite;
    // Copies and collectives before kernels: whoever waits for them would leave the device idle.
    const bool urgent = lane != Lane::kCompute;
    if (!of_host) prepare = [this, urgent] { device_.adopt_lane(urgent); };
    return std::make_unique<ThreadStream>(name, delays, prepare);
  });
  executor_ = std::make_unique<StepExecutor>(&lanes_, groups_.report_failure);
}

void Engine::run(const StepSchedule& schedule, const std::string& reason) {
  const double begin = executor_->now();
  host_waits_.count(reason);
  device_.finish("what comes before " + reason);  // batches, cleared sums
  executor_->run(schedule, *work_);
  const LaneLedger ledger = account(schedule, executor_->times(), begin);
  ledger_ += ledger;
  times_ledger_ += ledger;
  if (observer_) observer_(schedule, executor_->times());
}

StateWalk Engine::state_walk() {
  return {.options = tiers_.state->options(),
          .each = [this](const auto& visit) { walk(plan_.step.schedules.walk, visit); },
          .each_trained =
              [this](const auto& visit) { walk(plan_.step.schedules.walk_trained, visit); }};
}

void Engine::walk(const StepSchedule& schedule, const StateWalk::Visit& visit) {
  LONGSHORE_CHECK(!optimizer_->pending()) << "an update is pending";
  WalkWork work(tiers_.state.get(), visit);
  // An executor of its own: what a visit throws is its caller's to tell the other ranks.
  StepExecutor(&lanes_).run(schedule, work);
}

LossSum Engine::train_pass(std::span<const MicroBatch> batches, double scale,
                           const StepUpdate& update, const std::optional<DurableStep>& record) {
  runner_->begin_step(batches, scale);
  if (plan_.step.overlap == UpdateOverlap::kBackward) {
    optimizer_->stage(update);
    updates_ = update.update;
    if (record) commits_.stage(*record);
  }
  const bool first = plan_.step.overlap == UpdateOverlap::kForward && !optimizer_->pending();
  // HOST WAIT: the step's totals need every gradient.
  run(first ? plan_.step.schedules.first : plan_.step.schedules.train, "the train pass");
  return runner_->loss();
}

void Engine::stage_update(const StepUpdate& update, const std::optional<DurableStep>& record) {
  LONGSHORE_CHECK(plan_.step.overlap != UpdateOverlap::kBackward) << "it is applied already";
  optimizer_->stage(update);
  updates_ = update.update;
  if (record) commits_.stage(*record);
  if (plan_.step.overlap == UpdateOverlap::kNone) apply_updates();
}

void Engine::apply_updates() {
  if (!optimizer_->pending()) return;
  // HOST WAIT: whoever reads parameters or state next.
  run(plan_.step.schedules.flush, "updates");
}

void Engine::commit(const DurableStep& record) {
  LONGSHORE_CHECK(!optimizer_->pending()) << "an update is pending";
  commits_.stage(record);
  // HOST WAIT: the run may say that the step is kept.
  run(plan_.step.schedules.commit, "a commit");
}

LossSum Engine::evaluate(std::span<const MicroBatch> batches) {
  apply_updates();
  runner_->begin_evaluation(batches);
  run(plan_.step.schedules.forward, "an evaluation pass");
  return runner_->loss();
}

at::Tensor Engine::logits(const MicroBatch& batch, const at::Tensor& positions) {
  apply_updates();
  runner_->begin_logits(batch, positions);
  run(plan_.step.schedules.forward, "a generation pass");
  return runner_->logits();
}

DriveTraffic Engine::drive_traffic() const {
  DriveTraffic sum;
  sum += tiers_.state->traffic();
  if (tiers_.inputs) sum += tiers_.inputs->traffic();
  return sum;
}

std::unique_ptr<NodeShards> Engine::make_node() {
  if (plan_.gather != GatherMode::kHost) return nullptr;
  LONGSHORE_CHECK(tiers_.shared != nullptr && groups_.gathers != nullptr);
  return std::make_unique<NodeShards>(tiers_.shared, layouts_.size(), groups_.gathers,
                                      groups_.check);
}

void Engine::publish_settled_units() {
  if (!node_) return;
  for (const UnitSpec& unit : spec().units) {
    if (!optimizer_->pending(unit.id)) node_->publish(unit.id, version_);
  }
}

std::span<std::byte> Engine::carve(const PlannedBuffer& buffer) {
  return device_.memory().carve(buffer.name, buffer.bytes).bytes;
}

std::span<std::byte> Engine::carve_named(const std::string& name) {
  const PlannedBuffer* buffer = plan_.device.buffer(name);
  LONGSHORE_CHECK(buffer != nullptr) << "the plan has no buffer " << name;
  return carve(*buffer);
}

std::span<std::byte> Engine::carve_if_planned(const std::string& name) {
  return plan_.device.buffer(name) == nullptr ? std::span<std::byte>() : carve_named(name);
}

std::vector<std::span<std::byte>> Engine::carve_parts(const std::string& name) {
  const std::span<std::byte> whole = carve_if_planned(name);
  const auto count = static_cast<size_t>(plan_.step.micro_batches);
  LONGSHORE_CHECK(whole.size() % count == 0) << name << " is not in " << count << " equal parts";
  std::vector<std::span<std::byte>> parts;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back(whole.subspan(i * (whole.size() / count), whole.size() / count));
  }
  return parts;
}

StageRing Engine::make_ring() {
  std::vector<std::span<std::byte>> slots;
  for (int32_t i = 0; i < plan_.device.slots; ++i) {
    slots.push_back(carve_named("slot." + std::to_string(i)));
  }
  return StageRing(std::move(slots));
}

Prefetcher Engine::make_prefetcher() {
  return Prefetcher({.store = tiers_.state.get(),
                     .ring = &ring_,
                     .copies = &device_.copies(),
                     .shards = groups_.gathers,
                     .layouts = &layouts_,
                     .shard = groups_.shard(),
                     .node = node_.get()});
}

UnitRunner::Memory Engine::make_runner_memory() {
  UnitRunner::Memory memory;
  memory.device = device_.torch();
  for (int32_t i = 0; i < plan_.device.gradient_buffers; ++i) {
    memory.gradients.push_back(carve_if_planned("gradient." + std::to_string(i)));
  }
  std::vector<std::vector<std::span<std::byte>>> input_slots;
  for (int32_t i = 0; i < plan_.device.input_slots; ++i) {
    input_slots.push_back(carve_parts("input_slot." + std::to_string(i)));
  }
  const InputRuns runs(spec());
  for (const UnitSpec& unit : spec().units) {
    const PlannedBuffer* waiting = plan_.device.buffer("waiting_gradient." + unit.name);
    memory.waiting_gradients.push_back(waiting == nullptr ? std::span<std::byte>()
                                                          : carve(*waiting));
    if (unit.id.value == 0) continue;
    std::vector<std::span<std::byte>>& places = memory.carry.inputs.emplace_back();
    if (!runs.names(unit.id)) continue;
    // Runs take turns in the slots, as build_schedule has it.
    const auto number = static_cast<size_t>(runs.of(unit.id)->number);
    places = input_slots.empty() ? carve_parts("input." + unit.name)
                                 : input_slots[number % input_slots.size()];
  }
  memory.carry.gradients = carve_parts("output_gradient");
  return memory;
}

void Engine::load(const ParameterReader& read) {
  load_parameters(state_walk(), spec(), layouts_, groups_.shard(), read);
  updates_ = 0;
  advance_version();
}

PayloadCounters::Totals Engine::payload() const {
  PayloadCounters::Totals totals;
  for (const Communicator* group :
       {groups_.all, groups_.shards, groups_.gathers, groups_.replicas}) {
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
  if (groups_.all != nullptr) {
    const double waited = groups_.all->counters().total().all().waited_seconds;
    times.waited += waited - std::exchange(waited_before_, waited);
  }
  times_begin_ = now;
  return times;
}

void Engine::advance_version() {
  version_.value += 1;
  prefetcher_.set_version(version_);
  publish_settled_units();
}

}  // namespace longshore
