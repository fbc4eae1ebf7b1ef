#include "offload/plan/step_plan.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "offload/plan/drive_plan.h"
#include "offload/schedule/schedule_validator.h"
#include "pinned/frozen_file_store.h"

namespace longshore {
namespace {

void add_drive_operations(ScheduleInputs& schedule, const PlanSizes& sizes) {
  const PlanInputs& inputs = sizes.inputs();
  const NvmeStoreOptions options =
      nvme_options(inputs.nvme, inputs.state, inputs.topology, Rank(0), {});
  schedule.state_slots = options.state_slots;
  if (options.parameters_on_drives) schedule.parameter_slots = options.parameter_slots;
  schedule.commits = true;
  schedule.bytes_of(OpKind::kCommit) = {NvmeStore::commit_bytes(sizes.layouts(), options)};
  for (const FlatLayout& layout : sizes.layouts()) {
    const NvmeStore::UnitTraffic traffic = NvmeStore::traffic_of(layout, options);
    schedule.bytes_of(OpKind::kReadState).push_back(traffic.state_read);
    schedule.bytes_of(OpKind::kWriteState).push_back(traffic.state_written);
    schedule.bytes_of(OpKind::kReadParameters).push_back(traffic.parameters_read);
  }
}

ScheduleInputs schedule_inputs(const PlanSizes& sizes, const std::vector<bool>& resident) {
  const PlanInputs& inputs = sizes.inputs();
  const ModelSpec& model = sizes.model();
  ScheduleInputs schedule;
  schedule.model = &model;
  schedule.gathers = sizes.gathers();
  schedule.reduces = sizes.reduces();
  schedule.ordered_collectives = inputs.device == DeviceKind::kCuda;
  if (sizes.trains()) schedule.gradient_buffers = sizes.gradient_buffers();
  schedule.input_slots = sizes.input_slots();
  schedule.keep_results = sizes.kept_results();
  if (inputs.nvme.inputs && schedule.input_slots > 0) schedule.input_staging = kInputStagingSlots;
  schedule.overlap = inputs.overlap;
  schedule.gradient_ring = sizes.gradient_ring();
  const int64_t micro_batches = sizes.micro_batches();
  for (size_t i = 0; i < model.units.size(); ++i) {
    const int64_t trainable = sizes.layouts()[i].trainable_elements();
    const int64_t drained = trainable / inputs.topology.shard_ranks;
    const UnitId id = model.units[i].id;
    const SharedInputGroups& runs = sizes.runs();
    const Bytes input = runs.names(id) ? sizes.run_bytes(*runs.of(id)) : 0;
    const Bytes staged = NvmeInputs::staged_bytes(input, micro_batches);
    const std::initializer_list<std::pair<OpKind, Bytes>> moved = {
        {OpKind::kGather, sizes.gathered_bytes(i)},
        {OpKind::kFetch, sizes.fetched_bytes(i)},
        {OpKind::kReduce, plan_product({trainable, width_of(inputs.reduce)})},
        {OpKind::kDrain, plan_product({drained, width_of(inputs.state.drain)})},
        {OpKind::kSaveInput, input},
        {OpKind::kLoadInput, input},
        {OpKind::kWriteInput, staged},
        {OpKind::kReadInput, staged},
        {OpKind::kUpdate, sizes.update_bytes(i)}};
    for (const auto& [kind, bytes] : moved) schedule.bytes_of(kind).push_back(bytes);
  }
  if (inputs.nvme.state) add_drive_operations(schedule, sizes);
  if (inputs.frozen_files) {
    schedule.parameter_slots = FrozenFileStore::kSlots;
    schedule.resident = resident;
    for (size_t i = 0; i < model.units.size(); ++i) {
      schedule.bytes_of(OpKind::kReadParameters).push_back(sizes.file_bytes(i));
    }
  }
  return schedule;
}

StepSchedule proved_schedule(const ScheduleInputs& inputs) {
  StepSchedule schedule = build_schedule(inputs);
  check_step_schedule(schedule, inputs);
  return schedule;
}

// Returns the forward pass that begins with what the one of `inputs` leaves in the slots; empty
// where that is not every unit.
StepSchedule forward_in_slots(ScheduleInputs inputs, PassInputs slots) {
  slots.begin = left_in_slots(inputs.executions);
  if (slots.begin.size() < inputs.model->units.size()) return {};
  inputs.begin = slots.begin;
  inputs.executions = plan_pass(*inputs.model, Pass::kForward, slots);
  return proved_schedule(inputs);
}

PassSchedules make_schedules(const PlanSizes& sizes, const std::vector<bool>& resident) {
  const ModelSpec& model = sizes.model();
  const PassInputs slots = sizes.slots();
  ScheduleInputs inputs = schedule_inputs(sizes, resident);
  PassSchedules schedules;
  if (sizes.trains()) {
    inputs.executions = plan_pass(model, Pass::kTrain, slots);
    schedules.train = proved_schedule(inputs);
  }
  if (sizes.trains() && inputs.overlap == UpdateOverlap::kForward) {
    inputs.overlap = UpdateOverlap::kNone;
    schedules.first = proved_schedule(inputs);
  }
  inputs.pass = Pass::kForward;
  inputs.executions = plan_pass(model, Pass::kForward, slots);
  schedules.forward = proved_schedule(inputs);
  schedules.forward_again = forward_in_slots(inputs, slots);
  inputs.pass = Pass::kUpdates;
  inputs.executions = {};
  inputs.gradient_ring = 0;
  schedules.flush = proved_schedule(inputs);
  const bool commits = std::exchange(inputs.commits, false);
  schedules.sweep_trained = proved_schedule(inputs);
  inputs.pass = Pass::kSweep;
  schedules.sweep = proved_schedule(inputs);
  inputs.pass = Pass::kCommit;
  if (commits) schedules.commit = proved_schedule(inputs);
  return schedules;
}

StepTraffic traffic_of(const StepPlan& plan, const PlanSizes& sizes) {
  const ShardTopology& topology = sizes.inputs().topology;
  StepTraffic traffic;
  traffic.h2d = plan.moved(OpKind::kFetch) + plan.moved(OpKind::kLoadInput) +
                sizes.batch_bytes() * (plan.loss.forward_first ? 2 : 1);
  traffic.d2h = plan.moved(OpKind::kDrain) + plan.moved(OpKind::kSaveInput);
  traffic.all_gather = plan.moved(OpKind::kGather);
  const Bytes reduced = plan.moved(OpKind::kReduce);
  if (topology.shard_ranks > 1) traffic.reduce_scatter = reduced;
  if (topology.replicas() > 1) traffic.all_reduce = reduced / topology.shard_ranks;
  const bool files = sizes.inputs().frozen_files != nullptr;
  (files ? traffic.files_read : traffic.nvme_read) = plan.moved(OpKind::kReadParameters);
  traffic.nvme_read += plan.moved(OpKind::kReadState) + plan.moved(OpKind::kReadInput);
  traffic.nvme_written = plan.moved(OpKind::kWriteState) + plan.moved(OpKind::kWriteInput);
  const size_t units = sizes.model().units.size();
  for (size_t i = 0; i < units; ++i) traffic.update_dram += sizes.update_bytes(i);
  const double before_loss = std::max<double>(static_cast<double>(units) - 1, 1);
  const double passes =
      (plan.loss.forward_first ? 8.0 : 6.0) - 2.0 * plan.kept_graphs / before_loss;
  traffic.flops_per_token = passes * static_cast<double>(sizes.model().parameter_elements()) +
                            2.0 * static_cast<double>(sizes.model().trainable_elements());
  return traffic;
}

}  // namespace

Bytes StepPlan::offloaded_inputs_total() const {
  return std::accumulate(offloaded_inputs.begin(), offloaded_inputs.end(), Bytes{0});
}

const StepSchedule& StepPlan::next_forward() const {
  return schedules.forward_again.ops.empty() ? schedules.forward : schedules.forward_again;
}

Bytes StepPlan::moved_by_forward() const {
  Bytes sum = 0;
  for (const Op& op : next_forward().ops) sum += op.kind == OpKind::kFetch ? op.bytes : 0;
  return sum;
}

std::vector<const StepSchedule*> StepPlan::passes() const {
  if (!trains()) return {&next_forward()};
  const bool alone = loss.forward_first && overlap == UpdateOverlap::kForward;
  std::vector<const StepSchedule*> passes = {alone ? &schedules.first : &schedules.train};
  if (alone || overlap == UpdateOverlap::kNone) passes.push_back(&schedules.flush);
  if (loss.forward_first) passes.push_back(&schedules.forward);
  return passes;
}

Bytes StepPlan::moved(OpKind kind) const {
  Bytes sum = 0;
  for (const StepSchedule* schedule : passes()) {
    for (const Op& op : schedule->ops) sum += op.kind == kind ? op.bytes : 0;
  }
  return sum;
}

StepPlan plan_step(const PlanSizes& sizes, const std::vector<bool>& resident) {
  StepPlan plan;
  plan.overlap = sizes.inputs().overlap;
  plan.loss = sizes.inputs().loss;
  plan.micro_batches = sizes.micro_batches();
  plan.positions = sizes.positions();
  plan.kept_graphs = sizes.kept_graphs();
  plan.kept_results = sizes.kept_results();
  plan.resident = resident;
  plan.schedules = make_schedules(sizes, resident);
  plan.offloaded_inputs.assign(sizes.model().units.size(), 0);
  for (const Op& op : plan.schedules.train.ops) {
    if (op.kind != OpKind::kSaveInput) continue;
    plan.offloaded_inputs[static_cast<size_t>(op.unit.value)] = op.bytes;
  }
  plan.traffic = traffic_of(plan, sizes);
  return plan;
}

}  // namespace longshore
