#include "trainer/setup/measure_workspace.h"

#include <cstdio>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "offload/engine/probe/measured_workspace.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/run_environment.h"

namespace longshore {

namespace {

ProbeOptions probe_options(const RunSetup& setup) {
  const PlanInputs& inputs = setup.inputs;
  ProbeOptions options;
  // A GPU that is not here: what its units hold is much the same, its kernels' scratch is the
  // plan's allowance.
  options.elsewhere =
      inputs.device == DeviceKind::kCuda && (setup.elsewhere || setup.machine.gpus.empty());
  options.device = {.kind = options.elsewhere ? DeviceKind::kCpu : inputs.device,
                    .gpu = setup.ranks ? setup.ranks->groups().gpu : 0,
                    .compute = inputs.state.compute};
  options.threads = setup.compute.threads;
  // A number beyond counting is refused by the plan.
  options.run = {
      .positions =
          checked_multiply(inputs.micro_batch, inputs.max_tokens).value_or(inputs.max_tokens),
      .longest_document = inputs.max_tokens};
  // With updates in backward the first pass ends after the first updates: too late to check it.
  if (inputs.overlap == UpdateOverlap::kBackward) options.whole = WholeShape::kAlways;
  const Machine& here = setup.elsewhere ? setup.here : setup.machine;
  options.memory = here.host_available() / (setup.elsewhere ? 1 : inputs.ranks_per_node);
  options.cache = cache_directory(setup.config) + "/workspace";
  options.program = build_id() + "\n" + here.cpu_model;
  return options;
}

}  // namespace

void measure_workspace(RunSetup& setup) {
  MeasuredWorkspace measured(setup.source->model(), probe_options(setup));
  if (setup.ranks) {
    measured.take_largest(setup.ranks->world().exchange("the units' workspace", measured.text()));
  }
  setup.inputs.costs = measured.costs();
  if (measured.units_run() == 0 || (setup.ranks && !setup.ranks->first())) return;
  char text[80];
  std::snprintf(text, sizeof text, "ran %d units in %.2f s to measure their memory",
                measured.units_run(), measured.seconds());
  log_info(text);
}

UnitCosts costs_when_asked(const RunSetup& setup, std::shared_ptr<const Model> model) {
  const auto known = std::make_shared<UnitCosts>();
  return [known, model = std::move(model), options = probe_options(setup)](int64_t positions,
                                                                           int64_t longest) {
    if (*known == nullptr) *known = MeasuredWorkspace(*model, options).costs();
    return (*known)(positions, longest);
  };
}

}  // namespace longshore
