#include "offload/engine/engine.h"

#include "base/errors.h"
#include "base/processor.h"

namespace longshore {
namespace {

// The operations of a state sweep. Lives as long as the sweep; called by the lanes.
class SweepWork final : public StepWork {
 public:
  // Both must outlive the work.
  SweepWork(const Tiers* tiers, const StateSweep::Visitor& visit) : tiers_(tiers), visit_(visit) {}

  void run(const Op& op) override {
    switch (op.kind) {
      case OpKind::kReadState:
        return tiers_->slots->read_state(op.unit, *op.state);
      case OpKind::kUpdate: {
        const auto lease = tiers_->lease_state(op.unit, op.state);
        return visit_(op.unit, *lease);
      }
      case OpKind::kWriteState:
        return tiers_->slots->write_state(op.unit, *op.state);
      default:
        LONGSHORE_CHECK(false) << name_of(op.kind) << " in a sweep of the state";
    }
  }

 private:
  const Tiers* tiers_;
  const StateSweep::Visitor& visit_;
};

}  // namespace

Engine::Engine(const Model* model, const TierPlan& plan, const AdamWOptions& adamw,
               const RankGroups& groups, const RunKey& state_key, const EmulatedDevice& emulated)
    : parts_({.model = model,
              .plan = plan,
              .adamw = adamw,
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
  const double begin = executor_->now();
  host_waits_.count(reason);
  parts_.device.finish("what comes before " + reason);  // copies of batches, clearing of sums
  executor_->run(schedule, work_);
  const LaneLedger ledger = account(schedule, executor_->times(), begin);
  ledger_ += ledger;
  times_ledger_ += ledger;
  if (observer_) observer_(schedule, executor_->times());
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
  SweepWork work(&parts_.tiers, visit);
  // A separate executor runs the sweep: the caller reports the visitor's exceptions to other ranks.
  StepExecutor(&lanes_).run(schedule, work);
}

LossSum Engine::train_pass(std::span<const MicroBatch> batches, double scale,
                           const StepUpdate& update, const std::optional<DurableStep>& record) {
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
  run(parts_.plan.step.schedules.forward, "an evaluation pass");
  return parts_.runner.loss();
}

at::Tensor Engine::logits(const MicroBatch& batch, const at::Tensor& positions) {
  apply_updates();
  parts_.runner.begin_logits(batch, positions);
  run(parts_.plan.step.schedules.forward, "a generation pass");
  return parts_.runner.logits();
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

void Engine::read_shard(Rank shard, const ParameterReader& read) {
  read_parameters(spec(), parts_.layouts, shard, read,
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
