#include "bench/lab/timed_step.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {
namespace {

TimedStep with_times(StepSchedule schedule, const TimedStepOptions& options, int64_t slots) {
  TimedStep step;
  step.schedule = std::move(schedule);
  step.slots = static_cast<int32_t>(slots);
  step.gathers = options.several_ranks;
  for (const Op& op : step.schedule.ops) {
    step.seconds.push_back(seconds_of(op.kind, options.times));
  }
  return step;
}

ScheduleInputs schedule_inputs(const TimedStepOptions& options, const ModelSpec& model) {
  ScheduleInputs inputs;
  inputs.model = &model;
  inputs.gathers = inputs.reduces = options.several_ranks;
  inputs.gradient_buffers = gradient_buffers_for(options);
  inputs.overlap = options.overlap;
  inputs.gradient_ring = options.gradient_ring;
  inputs.state_slots = options.state_slots;
  inputs.parameter_slots = options.parameter_slots;
  inputs.commits = options.state_slots > 0;
  return inputs;
}

// ---- Baselines ----

constexpr int32_t kPeerSlots = 3;  // a gathered unit, the running one, the next buffer

// Backward fetches every unit but the last again. With `ahead` an execution fetches for the next.
PassPlan peer_visits(const ModelSpec& model, bool ahead) {
  PassPlan plan;
  const std::vector<UnitId> order = execution_order(model, Pass::kTrain);
  const auto place = [&](size_t execution) {
    return Placed{order[execution], DeviceSlot(static_cast<int32_t>(execution) % kPeerSlots)};
  };
  for (size_t i = 0; i < order.size(); ++i) {
    UnitExecution execution{order[i], {place(i)}, {}};
    if (!ahead || i == 0) execution.fetches.push_back(place(i));
    if (ahead && i + 1 < order.size()) execution.fetches.push_back(place(i + 1));
    plan.executions.push_back(execution);
  }
  return plan;
}

// Returns the operations of one kind, in schedule order.
std::vector<int32_t> ops_of(const StepSchedule& schedule, OpKind kind) {
  std::vector<int32_t> found;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    if (schedule.ops[i].kind == kind) found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

std::vector<int32_t> visits_of(const StepSchedule& schedule) {
  std::vector<int32_t> found;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    if (lane_of(schedule.ops[i].kind) == Lane::kCompute) found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

// Returns the part of a step that both baselines share.
StepSchedule peer_base(const TimedStepOptions& options, const ModelSpec& model, bool ahead) {
  ScheduleInputs inputs = schedule_inputs(options, model);
  inputs.executions = peer_visits(model, ahead);
  inputs.overlap = UpdateOverlap::kNone;
  inputs.gradient_ring = 0;
  inputs.state_slots = inputs.parameter_slots = 0;
  inputs.gradient_buffers = 3;  // more than the baselines' own waits allow in use
  return build_schedule(inputs);
}

void wait(StepSchedule& schedule, int32_t op, int32_t before) {
  LONGSHORE_CHECK(before < op) << "op " << op << " waits for op " << before;
  schedule.ops[static_cast<size_t>(op)].after.push_back(before);
}

// Adds updates of all units after the last gradient is in host memory.
void add_serial_updates(StepSchedule& schedule, const ModelSpec& model) {
  const int32_t last = ops_of(schedule, OpKind::kDrain).back();
  for (const UnitSpec& unit : model.units) {
    schedule.ops.push_back({.kind = OpKind::kUpdate, .unit = unit.id, .after = {last}});
  }
}

// Makes reductions and copies to the host share one stream.
void share_reduce_stream(StepSchedule& schedule) {
  const std::vector<int32_t> reduces = ops_of(schedule, OpKind::kReduce);
  const std::vector<int32_t> drains = ops_of(schedule, OpKind::kDrain);
  for (size_t i = 1; i < reduces.size(); ++i) wait(schedule, reduces[i], drains[i - 1]);
}

}  // namespace

double seconds_of(OpKind kind, const UnitTimes& times) {
  switch (kind) {
    case OpKind::kUpdate:
      return times.update;
    case OpKind::kFetch:
      return times.fetch;
    case OpKind::kGather:
      return times.gather;
    case OpKind::kForward:
      return times.forward;
    case OpKind::kBackward:
      return times.backward;
    case OpKind::kReduce:
      return times.reduce;
    case OpKind::kDrain:
      return times.drain;
    case OpKind::kReadState:
      return times.read_state;
    case OpKind::kReadParameters:
      return times.read_parameters;
    case OpKind::kWriteState:
      return times.write_state;
    case OpKind::kCommit:
      return times.commit;
    case OpKind::kReadInput:
    case OpKind::kLoadInput:
    case OpKind::kSaveInput:
    case OpKind::kWriteInput:
      break;
  }
  LONGSHORE_CHECK(false) << name_of(kind) << " has no time";
  return 0.0;
}

ModelSpec make_equal_units(int32_t units) {
  ModelSpec model;
  for (int32_t i = 0; i < units; ++i) {
    UnitSpec& unit = model.units.emplace_back();
    unit.id = UnitId(i);
    unit.name = "unit." + std::to_string(i);
    unit.parameters.push_back({.name = unit.name + ".weight", .shape = {1}, .init = {}});
    if (i + 1 < units) unit.carry_out = {{1}};
  }
  validate_model_spec(model);
  return model;
}

int32_t gradient_buffers_for(const TimedStepOptions& options) {
  const int64_t stages = options.several_ranks ? 3 : 2;  // backward, reduction, copy to the host
  return static_cast<int32_t>(std::min(options.prefetch + 1, stages));
}

TimedStep longshore_step(const TimedStepOptions& options, const ModelSpec& model) {
  const int64_t slots = options.prefetch + 1;
  PassInputs sizes;
  sizes.unit_bytes.assign(model.units.size(), 1);
  sizes.slot_bytes.assign(static_cast<size_t>(slots), 1);
  sizes.prefetch = options.prefetch;
  ScheduleInputs inputs = schedule_inputs(options, model);
  inputs.executions = plan_pass(model, Pass::kTrain, sizes);
  return with_times(build_schedule(inputs), options, slots);
}

TimedStep fsdp2_step(const TimedStepOptions& options, const ModelSpec& model) {
  StepSchedule schedule = peer_base(options, model, options.several_ranks);
  const std::vector<int32_t> executions = visits_of(schedule);
  const std::vector<int32_t> fetches = ops_of(schedule, OpKind::kFetch);
  const std::vector<int32_t> gathers = ops_of(schedule, OpKind::kGather);
  const size_t first_backward = model.units.size() - 1;
  for (size_t i = 1; i < fetches.size(); ++i) {
    if (!options.several_ranks) {
      wait(schedule, fetches[i], executions[i - 1]);
    } else if (i > first_backward) {
      // A unit's copy-out precedes its compute and follows the previous compute.
      wait(schedule, fetches[i], gathers[i - 1]);
      wait(schedule, fetches[i], executions[i - 2]);
    }
  }
  // Only one reduction input is live: it is packed after its unit's compute.
  const std::vector<int32_t> reduces = ops_of(schedule, OpKind::kReduce);
  for (size_t i = 0; i + 2 < reduces.size(); ++i) {
    wait(schedule, executions[first_backward + i + 2], reduces[i]);
  }
  share_reduce_stream(schedule);
  add_serial_updates(schedule, model);
  return with_times(std::move(schedule), options, kPeerSlots);
}

TimedStep deepspeed_step(const TimedStepOptions& options, const ModelSpec& model) {
  StepSchedule schedule = peer_base(options, model, true);
  const std::vector<int32_t> executions = visits_of(schedule);
  const std::vector<int32_t> fetches = ops_of(schedule, OpKind::kFetch);
  const std::vector<int32_t> gathers = ops_of(schedule, OpKind::kGather);
  // An execution has one fetch, and the last unit is not fetched again.
  for (size_t i = 0; i + 1 < fetches.size(); ++i) {
    if (!gathers.empty()) wait(schedule, fetches[i + 1], gathers[i]);
    wait(schedule, executions[i], fetches[i + 1]);
  }
  share_reduce_stream(schedule);
  add_serial_updates(schedule, model);
  return with_times(std::move(schedule), options, kPeerSlots);
}

}  // namespace longshore
