#include "trainer/run/run_setup.h"

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "device/cuda_device.h"
#include "fsdp/engine.h"
#include "nvme/probe/drive_wear.h"
#include "offload/optimizer/adamw_rule.h"
#include "offload/plan/plan_inputs.h"
#include "trainer/run/drive_geometry.h"
#include "trainer/run/gather_choice.h"
#include "trainer/run/step_seconds.h"

namespace longshore {
namespace {

// Tokens of the training files are not counted yet when the plan is made. A token takes about four
// bytes of text, and eight bytes of memory (token and target).
Bytes estimate_data_bytes(const DataSection& data) {
  Bytes text = 0;
  for (const auto* files : {&data.train, &data.eval}) {
    for (const std::string& path : *files) {
      std::error_code error;
      const auto bytes = std::filesystem::file_size(path, error);
      if (!error) text += static_cast<Bytes>(bytes);
    }
  }
  return text * 2;
}

// A table of positions has an end; rotary positions have none.
void check_positions(const RunConfig& config, const ArchSpec& arch) {
  if (arch.position != PositionKind::kLearned || config.data.max_tokens <= arch.max_positions) {
    return;
  }
  throw ConfigError("data.max_tokens = " + std::to_string(config.data.max_tokens) +
                    " is more than the " + std::to_string(arch.max_positions) + " positions that " +
                    arch.origin + " has; lower data.max_tokens");
}

// The text that all ranks must have in common to make the same plan of units.
std::string describe_units(const ModelSpec& spec) {
  std::string text;
  for (const UnitSpec& unit : spec.units) {
    text += "unit " + unit.name + "\n";
    for (const ParamSpec& parameter : unit.parameters) {
      text += "  " + parameter.name;
      for (const int64_t dimension : parameter.shape) text += " " + std::to_string(dimension);
      text += parameter.frozen ? " frozen\n" : "\n";
    }
  }
  return text;
}

void agree_on_run(const RunSetup& setup) {
  World& world = setup.ranks->world();
  world.agree("the run file", to_toml(setup.config));
  world.agree("the model", setup.source->directory().fingerprint() + "\n");
  world.agree("the units", describe_units(setup.source->spec()));
  world.agree("compute threads", std::to_string(setup.compute.threads) + "\n");
}

void fill(RunSetup& setup, const ShardTopology& topology, int32_t ranks_per_node) {
  setup.machine = probe_machine();
  setup.machine.physical_cores = std::max(1, setup.machine.physical_cores / ranks_per_node);
  // Before the model: its tables are LibTorch's first computation.
  setup.compute = set_compute_threads(compute_threads(setup.config, setup.machine));
  setup.source = std::make_unique<ModelSource>(setup.config);
  check_positions(setup.config, setup.source->arch());
  check_groups(adamw_options(setup.config), setup.source->spec());
  setup.inputs = plan_inputs(
      setup.config, setup.source->spec(),
      unit_costs(setup.source->model(), setup.config.precision.compute, setup.compute.threads),
      setup.machine);
  setup.inputs.topology = topology;
  setup.inputs.ranks_per_node = ranks_per_node;
  setup.inputs.data_bytes = estimate_data_bytes(setup.config.data);
  choose_gather(setup.config, setup.ranks.get(), setup.inputs);
  for (const std::string& directory : setup.inputs.nvme.directories) {
    setup.inputs.nvme.wear.push_back(read_drive_wear(directory));
  }
  setup.inputs.nvme.seconds_per_step =
      measured_step_seconds(setup.config.run.dir + "/metrics.jsonl");
}

}  // namespace

RunSetup prepare_run(const RunArguments& arguments, const AssumedRanks& assumed) {
  RunSetup setup;
  setup.config = load_run_config(arguments.files, arguments.overrides);
  fill(setup, topology_of(setup.config.fsdp, assumed.ranks, assumed.per_node), assumed.per_node);
  read_drive_geometry(setup);
  return setup;
}

RunSetup join_run(const RunArguments& arguments) {
  RunSetup setup;
  setup.config = load_run_config(arguments.files, arguments.overrides);
  setup.ranks = std::make_unique<RunRanks>(setup.config);
  try {
    // Before LibTorch's first computation: it looks for a GPU's kernels once.
    if (device_kind(setup.config) == DeviceKind::kCuda) {
      prepare_cuda(setup.ranks->info().local_rank);
    }
    fill(setup, setup.ranks->topology(), setup.ranks->info().local_size);
    agree_on_run(setup);
    settle_drive_geometry(setup);
  } catch (const std::exception& error) {
    setup.ranks->world().report_failure(error.what());
    throw;
  }
  return setup;
}

}  // namespace longshore
