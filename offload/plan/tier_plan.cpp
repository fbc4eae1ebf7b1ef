#include "offload/plan/tier_plan.h"

#include <algorithm>

#include "base/errors.h"
#include "offload/plan/host_plan.h"

namespace longshore {
namespace {

// Counts the fp32 master, and the update rule's regions in the state's format.
Bytes bytes_of(const ParamSpec& parameter, const StateOptions& state) {
  if (parameter.frozen) return 0;
  Bytes sum = plan_product({parameter.elements(), width_of(DType::kF32)});
  for (const Region region : regions_of(state)) {
    if (!region.is_rules()) continue;
    sum += region_bytes(state, segment_of(parameter), region, parameter.elements());
  }
  return sum;
}

TierPlan draft(const PlanInputs& inputs, const Machine& machine) {
  const PlanSizes sizes(inputs);
  const ModelSpec& model = *inputs.model;
  TierPlan plan;
  plan.device = plan_device(sizes, machine);
  plan.step = plan_step(sizes, {});
  plan.drives = plan_drives(sizes, plan.step);
  plan.host = plan_host(sizes, plan.device, plan.step, machine);
  const std::vector<bool> resident = choose_resident(sizes, plan.step, plan.host);
  if (!resident.empty()) {
    plan.step = plan_step(sizes, resident);
    plan.host = plan_host(sizes, plan.device, plan.step, machine);
  }
  plan.parameters = model.parameter_elements();
  plan.trainable = model.trainable_elements();
  plan.decode = inputs.decode;
  plan.decode.sequence_bytes = nullptr;  // the plan outlives what it needs
  plan.state = inputs.state;
  plan.topology = inputs.topology;
  plan.ranks_per_node = inputs.ranks_per_node;
  plan.reduce = inputs.reduce;
  plan.gather = inputs.gather;
  plan.frozen_in_files = inputs.frozen_files != nullptr;
  plan.compute_threads = inputs.compute_threads;
  plan.optimizer_threads = inputs.optimizer_threads;
  plan.steps = inputs.steps;
  plan.checkpoint_bytes = checkpoint_bytes(model, inputs.state);
  plan.export_bytes = inputs.export_bytes;
  return plan;
}

}  // namespace

Bytes checkpoint_bytes(const ModelSpec& model, const StateOptions& state) {
  Bytes sum = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) sum += bytes_of(parameter, state);
  }
  return sum;
}

std::string why_not_on_host(const PlanInputs& inputs) {
  if (inputs.topology.shard_ranks == 1) return "a rank holds whole units";
  if (inputs.topology.shard_ranks > inputs.ranks_per_node ||
      inputs.ranks_per_node % inputs.topology.shard_ranks != 0) {
    return "ranks that share a copy of the model are not all on one machine (fsdp.strategy)";
  }
  if (inputs.nvme.state) return "state is on drives (offload.optimizer)";
  if (inputs.keep_frozen) return "frozen parameters are packed (adapter.base)";
  if (inputs.frozen_files) return "frozen parameters are in the model's files (offload.parameters)";
  if (needs_join(inputs.state)) {
    return "with precision.compute = \"fp32\" split masters are joined for the device "
           "(offload.state_format = \"fp32\" would do)";
  }
  return "";
}

namespace {

// Keeps the most graphs that fit; memory never falls with their number.
TierPlan plan_with_most_graphs(const PlanInputs& inputs, const Machine& machine) {
  PlanInputs tried = inputs;
  tried.keep_what_fits = false;
  int32_t fits = 0;
  auto beyond = static_cast<int32_t>(inputs.model->units.size());
  while (beyond - fits > 1) {
    tried.kept_graphs = (fits + beyond) / 2;
    (draft_tier_plan(tried, machine).fits() ? fits : beyond) = tried.kept_graphs;
  }
  tried.kept_graphs = fits;
  return draft_tier_plan(tried, machine);
}

}  // namespace

TierPlan draft_tier_plan(const PlanInputs& inputs, const Machine& machine) {
  LONGSHORE_CHECK(inputs.model != nullptr && inputs.costs != nullptr);
  LONGSHORE_CHECK(inputs.sequences_per_step >= 1 && inputs.micro_batch >= 1 &&
                  inputs.max_tokens >= 1 && inputs.prefetch >= 0 && inputs.topology.ranks >= 1 &&
                  inputs.ranks_per_node >= 1);
  LONGSHORE_CHECK(inputs.gather == GatherMode::kCollective || why_not_on_host(inputs).empty());
  LONGSHORE_CHECK(!inputs.frozen_files || !inputs.nvme.state) << "frozen parameters in files";
  LONGSHORE_CHECK(inputs.keep_results == KeptResults::kNone ||
                  (!inputs.keep_what_fits && inputs.kept_graphs == 0))
      << "graphs and results";
  if (inputs.recompute && inputs.keep_what_fits) return plan_with_most_graphs(inputs, machine);
  return draft(inputs, machine);
}

TierPlan make_tier_plan(const PlanInputs& inputs, const Machine& machine) {
  TierPlan plan = draft_tier_plan(inputs, machine);
  if (!plan.fits()) throw DoesNotFitError(explain_misfit(inputs, machine));
  return plan;
}

}  // namespace longshore
