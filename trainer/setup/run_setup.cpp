#include "trainer/setup/run_setup.h"

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/processor.h"
#include "device/cuda_device.h"
#include "nvme/probe/drive_room.h"
#include "nvme/probe/drive_wear.h"
#include "offload/optimizer/adamw_rule.h"
#include "offload/plan/plan_from_config.h"
#include "trainer/data/data_files.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/device_choice.h"
#include "trainer/device/self_check.h"
#include "trainer/directory/step_seconds.h"
#include "trainer/model/export_run.h"
#include "trainer/setup/drive_geometry.h"
#include "trainer/setup/gather_choice.h"
#include "trainer/setup/units_choice.h"

namespace longshore {
namespace {

// Tokens of the training files are not counted yet when the plan is made. A token takes about four
// bytes of text, and eight bytes of memory (token and target).
Bytes estimate_data_bytes(DataSection data) {
  Bytes text = 0;
  try {
    data = with_data_files(std::move(data));
  } catch (const DataError&) {
    // Whoever reads the data says so; a plan can do without.
  }
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
      text += "  " + parameter.name + " from " + std::to_string(parameter.first_row);
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

// By another path or through a link, it would be the same files.
void check_distinct_drives(const NvmeTier& tier) {
  for (size_t i = 0; i < tier.rooms.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!tier.rooms[i] || !tier.rooms[j] || tier.rooms[i]->directory == 0) continue;
      if (tier.rooms[i]->file_system != tier.rooms[j]->file_system) continue;
      if (tier.rooms[i]->directory != tier.rooms[j]->directory) continue;
      throw ConfigError("offload.nvme: " + tier.directories[j] + " and " + tier.directories[i] +
                        " are the same directory; name one on each drive");
    }
  }
}

// All ranks make the plan that the fullest of their GPUs has room for.
void look_for_gpu_room(RunSetup& setup) {
  if (setup.elsewhere || setup.inputs.device != DeviceKind::kCuda || setup.machine.gpus.empty()) {
    return;
  }
  const int gpu = setup.ranks ? setup.ranks->groups().gpu : 0;
  Bytes room =
      gpu_room(setup.machine.gpus.at(static_cast<size_t>(gpu)).memory_bytes, cuda_free_bytes(gpu));
  if (setup.ranks) {
    for (const std::string& other :
         setup.ranks->world().exchange("the GPU's room", std::to_string(room))) {
      room = std::min(room, Bytes{std::stoll(other)});
    }
  }
  setup.machine.gpu_room = room;
}

void fill(RunSetup& setup, const ShardTopology& topology, const AssumedRanks& assumed) {
  const int32_t ranks_per_node = assumed.per_node;
  const std::optional<Machine>& elsewhere = assumed.machine;
  const Machine& here = setup.here = probe_machine();
  setup.machine = elsewhere.value_or(here);
  setup.elsewhere = elsewhere.has_value();
  setup.machine.physical_cores = std::max(1, setup.machine.physical_cores / ranks_per_node);
  setup.machine.logical_cores = std::max(1, setup.machine.logical_cores / ranks_per_node);
  // Before the model: its tables are LibTorch's first computation.
  const int cores = setup.elsewhere ? here.physical_cores : here.physical_cores / ranks_per_node;
  Machine computing = setup.machine;
  computing.physical_cores = std::max(1, std::min(cores, computing.physical_cores));
  setup.compute = set_compute_threads(compute_threads(setup.config, computing));
  setup.source = open_source(setup.config, assumed.weights);
  setup.inputs = plan_inputs(setup.config, setup.source->spec(), setup.machine);
  setup.inputs.topology = topology;
  setup.inputs.ranks_per_node = ranks_per_node;
  setup.inputs.data_bytes = estimate_data_bytes(setup.config.data);
  choose_gather(setup.config, setup.ranks ? &setup.ranks->groups() : nullptr, setup.inputs);
  look_for_gpu_room(setup);
  // Another machine's drives are not here to be asked.
  const std::vector<std::string> drives =
      setup.elsewhere ? std::vector<std::string>() : setup.inputs.nvme.directories;
  for (const std::string& directory : drives) {
    setup.inputs.nvme.wear.push_back(read_drive_wear(directory));
    setup.inputs.nvme.rooms.push_back(read_drive_room(directory));
  }
  check_distinct_drives(setup.inputs.nvme);
  setup.inputs.nvme.seconds_per_step =
      measured_step_seconds(setup.config.run.dir + "/metrics.jsonl");
}

// Before LibTorch's first computation, which looks for a GPU's kernels once.
void ready_gpu(const RunConfig& config, const FoundGpus& found, int gpu, int32_t ranks) {
  require_gpus(config, found, ranks);
  if (device_kind(config) != DeviceKind::kCuda) return;
  require_sound_gpu(
      self_check_of(found.usable.at(static_cast<size_t>(gpu)), gpu, cache_directory(config)));
  prepare_cuda(gpu);
}

}  // namespace

std::unique_ptr<ModelSource> open_source(const RunConfig& config, ModelDirectory::Weights weights) {
  auto source = std::make_unique<ModelSource>(config, weights);
  check_positions(config, source->arch());
  check_groups(adamw_options(config), source->spec());
  return source;
}

std::vector<std::string> run_notes(const RunSetup& setup, const TierPlan& plan) {
  std::vector<std::string> notes;
  const bool cpu = plan.device.kind == DeviceKind::kCpu;
  if (cpu && setup.config.precision.compute == DType::kBF16 && !cpu_has_bf16()) {
    notes.push_back(
        "precision.compute = \"bf16\": this CPU has no bf16 instructions, fp32 is several times "
        "faster on it");
  }
  if (!cpu && setup.machine.gpus.empty()) {
    notes.push_back("this machine has no GPU: the bytes of the device are estimates");
  }
  if (!setup.source->has_weights()) {
    notes.push_back(setup.source->directory().path() +
                    ": has no weights yet; `longshore train` needs them");
  }
  const ArchSpec& arch = setup.source->arch();
  if (setup.config.data.max_tokens > arch.max_positions) {
    notes.push_back("data.max_tokens = " + std::to_string(setup.config.data.max_tokens) +
                    " is more than the " + std::to_string(arch.max_positions) +
                    " positions that the model was made for (max_position_embeddings)");
  }
  // A CPU's fused kernel is no faster than plain operations.
  if (!cpu && arch.score_cap != 0.0) {
    notes.push_back(
        "attn_logit_softcapping: no fused kernel supports capped scores; the attention of this "
        "model uses plain GPU operations and is slower, most of all for long documents");
  }
  const Bytes free = setup.machine.host_available() / setup.inputs.ranks_per_node;
  if (!plan.host.limit_auto && plan.host.total > free) {
    notes.push_back("offload.host_memory: the plan needs " + format_bytes(plan.host.total) +
                    " of host memory, " + format_bytes(free) + " are free now");
  }
  for (size_t i = 0; i < plan.drives.tier.rooms.size(); ++i) {
    if (!plan.drives.tier.rooms[i] || !plan.drives.tier.rooms[i]->in_memory) continue;
    notes.push_back("offload.nvme: " + plan.drives.tier.directories[i] +
                    " is in memory (tmpfs): its files are lost with the machine, and they use host "
                    "memory");
  }
  return notes;
}

RunSetup prepare_run(const RunArguments& arguments, const AssumedRanks& assumed, SetupFor purpose) {
  RunSetup setup;
  // How long it trains is of no weight here.
  setup.config = load_run_config(arguments.files, arguments.overrides, {.length = false});
  const FoundGpus found = find_gpus();
  if (assumed.machine && setup.config.device.kind == DeviceSection::Kind::kAuto) {
    setup.config.device.kind =
        assumed.machine->gpus.empty() ? DeviceSection::Kind::kCpu : DeviceSection::Kind::kCuda;
  }
  settle_device(setup.config, found);
  if (purpose == SetupFor::kComputing) {
    ready_gpu(setup.config, found, 0, 1);
  } else if (device_kind(setup.config) == DeviceKind::kCuda && !found.usable.empty()) {
    prepare_cuda(0);  // units are measured there
  }
  fill(setup, topology_of(setup.config.fsdp, assumed.ranks, assumed.per_node), assumed);
  if (!setup.elsewhere) read_drive_geometry(setup);
  return setup;
}

RunSetup join_run(const RunArguments& arguments) {
  RunSetup setup;
  setup.config = load_run_config(arguments.files, arguments.overrides);
  with_data_files(setup.config.data);  // refused before anything is made
  const FoundGpus found = find_gpus();
  settle_device(setup.config, found);
  setup.ranks = std::make_unique<RunRanks>(setup.config, found.usable.size());
  try {
    const RankInfo& info = setup.ranks->info();
    const int gpu = setup.ranks->groups().gpu;
    agree_on_gpus(setup.ranks->world(), setup.config, found, gpu);
    ready_gpu(setup.config, found, gpu, gpu + 1);
    fill(setup, setup.ranks->topology(), {.ranks = info.size, .per_node = info.local_size});
    check_run_export(setup.config, *setup.source);
    agree_on_run(setup);
    if (setup.source->arch().moe.balance != 0.0) setup.ranks->add_routers();
    settle_units(setup);
    settle_drive_geometry(setup);
  } catch (const std::exception& error) {
    setup.ranks->world().report_failure(error.what());
    throw;
  }
  return setup;
}

}  // namespace longshore
