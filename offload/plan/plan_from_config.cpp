#include "offload/plan/plan_from_config.h"

#include <algorithm>

namespace longshore {
namespace {

int threads_or(const std::optional<int64_t>& wanted, int automatic) {
  return wanted ? static_cast<int>(*wanted) : automatic;
}

std::vector<AdamWGroup> adamw_groups(const OptimizerSection& optimizer) {
  std::vector<AdamWGroup> groups;
  for (const ParameterGroup& group : optimizer.groups) {
    groups.push_back(
        {group.parameters, group.lr ? *group.lr / optimizer.lr : 1.0, group.weight_decay});
  }
  return groups;
}

// Threads that issue to a GPU during updates: compute, copies up, copies down.
constexpr int kLaunchingThreads = 3;

// On a GPU the update has every hardware thread but those of the lanes, and at least half of them:
// it waits for memory, and a core's second thread asks for more of it. On the CPU device compute
// shares the cores, so the update has a thread for each core.
int optimizer_threads(const RunConfig& config, const Machine& machine) {
  if (device_kind(config) != DeviceKind::kCuda) {
    return threads_or(config.offload.threads, machine.physical_cores);
  }
  const int threads = machine.logical_cores;
  return threads_or(config.offload.threads, threads - std::min(kLaunchingThreads, threads / 2));
}

KeptResults kept_results(FsdpSection::Recompute recompute) {
  switch (recompute) {
    case FsdpSection::Recompute::kExceptAttention:
      return KeptResults::kAttention;
    case FsdpSection::Recompute::kExceptHeads:
      return KeptResults::kHeads;
    case FsdpSection::Recompute::kExceptMiddle:
      return KeptResults::kMiddle;
    case FsdpSection::Recompute::kExceptMlp:
      return KeptResults::kMlp;
    case FsdpSection::Recompute::kUnit:
    case FsdpSection::Recompute::kNone:
    case FsdpSection::Recompute::kAuto:
      break;
  }
  return KeptResults::kNone;
}

StateOptions options_of_state(const RunConfig& config, const UpdateRule& rule) {
  return {.format = config.offload.state_format,
          .compute = config.precision.compute,
          .drain = config.precision.drain_dtype(),
          .regions = rule.regions()};
}

}  // namespace

StateOptions state_options(const RunConfig& config) {
  return options_of_state(config, *update_rule(config));
}

AdamWOptions adamw_options(const RunConfig& config) {
  const OptimizerSection& optimizer = config.optimizer;
  return {.beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .decay = optimizer.decay,
          .groups = adamw_groups(optimizer),
          .seed = static_cast<uint64_t>(config.run.seed)};
}

std::unique_ptr<UpdateRule> update_rule(const RunConfig& config) {
  return std::make_unique<AdamWRule>(adamw_options(config));
}

DeviceKind device_kind(const RunConfig& config) {
  return config.device.kind == DeviceSection::Kind::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
}

int compute_threads(const RunConfig& config, const Machine& machine) {
  return threads_or(config.device.threads, machine.physical_cores);
}

PlanInputs plan_inputs(const RunConfig& config, const ModelSpec& model, const Machine& machine) {
  PlanInputs inputs;
  inputs.model = &model;
  const std::shared_ptr<const UpdateRule> rule = update_rule(config);
  inputs.state = options_of_state(config, *rule);
  inputs.reduce = config.precision.reduce;
  inputs.nvme.state = config.offload.optimizer == OffloadSection::Optimizer::kNvme;
  inputs.nvme.parameters = config.offload.parameters == OffloadSection::Parameters::kNvme;
  inputs.nvme.inputs = config.offload.activations == OffloadSection::Activations::kNvme;
  // A plan that uses no drives ignores these; a search tries the directories.
  inputs.nvme.directories = config.offload.nvme;
  inputs.nvme.rated_writes = config.offload.nvme_tbw;
  inputs.nvme.versions = static_cast<int>(config.offload.nvme_versions);
  inputs.nvme.checkpoint_steps = config.checkpoint.every_steps;
  inputs.steps = config.train.steps;
  inputs.sequences_per_step = config.train.sequences_per_step;
  inputs.micro_batch = config.train.micro_batch.value_or(1);
  inputs.max_tokens = config.data.max_tokens;
  inputs.loss = traits_of(config.train.loss);
  inputs.prefetch = config.fsdp.prefetch;
  inputs.recompute = config.fsdp.recompute != FsdpSection::Recompute::kNone;
  inputs.keep_what_fits = config.fsdp.recompute == FsdpSection::Recompute::kAuto;
  inputs.keep_results = kept_results(config.fsdp.recompute);
  inputs.offload_inputs = config.offload.activations != OffloadSection::Activations::kDevice;
  inputs.overlap = config.optimizer.overlap;
  inputs.device = device_kind(config);
  inputs.device_cap = config.offload.device_memory;
  inputs.host_cap = config.offload.host_memory;
  inputs.pinned_cap = config.offload.pinned_memory;
  inputs.matrix_scratch = [rule](int64_t rows, int64_t columns) {
    return rule->scratch_elements(rows, columns);
  };
  inputs.compute_threads = compute_threads(config, machine);
  inputs.optimizer_threads = optimizer_threads(config, machine);
  return inputs;
}

}  // namespace longshore
