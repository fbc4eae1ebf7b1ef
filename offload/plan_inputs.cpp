#include "offload/plan_inputs.h"

#include "base/errors.h"

namespace longshore {
namespace {

// `auto` is the CPU: the engine computes nowhere else.
DeviceKind choose_device(const RunConfig& config) {
  if (config.device.kind == DeviceSection::Kind::kCuda) {
    throw ConfigError(
        "device.kind: this build computes on the cpu only; set device.kind = \"cpu\"");
  }
  return DeviceKind::kCpu;
}

int threads_or(const std::optional<int64_t>& wanted, int automatic) {
  return wanted ? static_cast<int>(*wanted) : automatic;
}

}  // namespace

StateOptions state_options(const RunConfig& config) {
  const bool fp32 = config.offload.state_format == OffloadSection::StateFormat::kFp32;
  return {.format = fp32 ? StateFormat::kFp32 : StateFormat::kSplit,
          .compute = config.precision.compute,
          .drain = config.precision.drain_dtype()};
}

AdamWOptions adamw_options(const RunConfig& config) {
  const OptimizerSection& optimizer = config.optimizer;
  const bool all = optimizer.decay == OptimizerSection::Decay::kAll;
  return {.beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .decay = all ? AdamWOptions::Decay::kAll : AdamWOptions::Decay::kMatrices};
}

int compute_threads(const RunConfig& config, const Machine& machine) {
  return threads_or(config.device.threads, machine.physical_cores);
}

PlanInputs plan_inputs(const RunConfig& config, const ModelSpec& model, UnitCosts costs,
                       const Machine& machine) {
  PlanInputs inputs;
  inputs.model = &model;
  inputs.costs = std::move(costs);
  inputs.state = state_options(config);
  inputs.reduce = config.precision.reduce;
  inputs.sequences_per_step = config.train.sequences_per_step;
  inputs.micro_batch = config.train.micro_batch;
  inputs.max_tokens = config.data.max_tokens;
  inputs.prefetch = config.fsdp.prefetch;
  inputs.recompute = config.fsdp.recompute == FsdpSection::Recompute::kUnit;
  inputs.device = choose_device(config);
  inputs.device_cap = config.offload.device_memory;
  inputs.host_cap = config.offload.host_memory;
  inputs.compute_threads = compute_threads(config, machine);
  inputs.optimizer_threads = threads_or(config.offload.threads, machine.physical_cores);
  return inputs;
}

}  // namespace longshore
