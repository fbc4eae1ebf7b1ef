#include "trainer/setup/run_setup.h"

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/processor.h"
#include "base/texts.h"
#include "config/toml_document.h"
#include "device/cuda_device.h"
#include "model/parameters/adapter.h"
#include "nvme/probe/drive_probe.h"
#include "offload/optimizer/adamw.h"
#include "offload/plan/plan_from_config.h"
#include "offload/plan/plan_sizes.h"
#include "pinned/pinned_arena.h"
#include "trainer/data/run_data.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/device_choice.h"
#include "trainer/device/gpu_check.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/model/adapter_files.h"
#include "trainer/model/base_identity.h"
#include "trainer/model/export_run.h"

namespace longshore {
namespace {

// Estimates the memory of the data, because its tokens are counted only after planning. A token is
// about four bytes of text and eight bytes of memory (token and target). A teacher's lists are most
// of the text of their rows. Those of training are in memory for one step: two numbers for each
// token of a list, in the batches of the step and in those of the rank. An evaluation has all of
// its own.
Bytes estimate_data_bytes(const RunConfig& config) {
  Bytes trained = 0, evaluated = 0;
  const auto add_files = [](const std::vector<std::string>& files, Bytes& text) {
    for (const std::string& path : files) {
      std::error_code error;
      const auto bytes = std::filesystem::file_size(path, error);
      if (!error) text += static_cast<Bytes>(bytes);
    }
  };
  try {
    add_files(with_data_files(config.data).train, trained);
    for (const auto& [name, set] : evaluation_sets(config)) {
      add_files(with_data_files(set.data).eval, evaluated);
    }
  } catch (const Error&) {
    // Reading the data reports the error later; a plan is possible without it.
  }
  if (config.train.loss != LossKind::kDistill) return (trained + evaluated) * 2;
  evaluated += static_cast<Bytes>(config.eval.split * static_cast<double>(trained));
  const int64_t top_k = config.distill.top_k;
  return trained * 2 / top_k + evaluated * 2 +
         plan_product({static_cast<int64_t>(4 * sizeof(float)), top_k,
                       config.train.sequences_per_step, config.data.max_tokens});
}

// Throws if a learned position table is too short; rotary positions have no limit.
void check_positions(const RunConfig& config, const ArchSpec& arch) {
  if (arch.position != PositionKind::kLearned || config.data.max_tokens <= arch.max_positions) {
    return;
  }
  throw ConfigError("data.max_tokens = " + std::to_string(config.data.max_tokens) +
                    " is more than the " + std::to_string(arch.max_positions) + " positions that " +
                    arch.origin + " has; lower data.max_tokens");
}

// Throws if the rows of new tokens would never be trained.
void check_new_rows(const ModelSource& source) {
  if (!source.has_new_tokens()) return;
  std::vector<std::string> frozen;
  for (const UnitSpec* unit : {&source.whole().units.front(), &source.whole().units.back()}) {
    for (const ParamSpec& parameter : unit->parameters) {
      const bool of_tokens = parameter.matrices.none && !parameter.adapter &&
                             parameter.shape.front() == source.arch().vocabulary;
      if (of_tokens && parameter.frozen) frozen.push_back(module_of(parameter.name));
    }
  }
  if (frozen.empty()) return;
  const std::string names = joined(frozen, " and ");
  const AdapterFiles* const adapter = source.adapter();
  throw ConfigError(
      source.tokens().text() + ": the rows of new tokens would stay as they begin, because " +
      names + (frozen.size() > 1 ? " are" : " is") + " frozen; " +
      (adapter == nullptr ? "take them out of train.freeze"
       : adapter->directory() != nullptr
           ? "the adapter of adapter.path does not train them: start from a new one, with " +
                 toml_list(frozen) + " in adapter.train"
           : "add " + toml_list(frozen) + " to adapter.train, as modules_to_save of PEFT"));
}

// Throws if the model's files cannot be read while the run trains.
void check_files(const RunConfig& config, const ModelSource& source) {
  if (config.offload.parameters != OffloadSection::Parameters::kFiles) return;
  const std::string start = "offload.parameters = \"files\": " + source.directory().path();
  if (source.directory().quantised() && !source.packing().on()) {
    throw ConfigError(start + " stores weights in " +
                      std::string(name_of(source.directory().quantisation())) +
                      ", and only adapters read these while they train (adapter.kind); set "
                      "offload.parameters = \"host\" or \"nvme\"");
  }
  if (std::ranges::none_of(source.whole().units, &UnitSpec::has_frozen)) {
    throw ConfigError(start + ": no parameter is frozen; set offload.parameters = \"host\"");
  }
}

// Returns a text that is equal on all ranks if their units are equal.
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

void agree_on_run(const OpenedRun& run) {
  World& world = run.ranks->world();
  world.agree("the run file", to_toml(run.config));
  world.agree("the model", run.source->fingerprint() + "\n");
  world.agree("the units", describe_units(run.source->spec()));
  world.agree("compute threads", std::to_string(run.compute.threads) + "\n");
}

// Throws if two paths name one directory, whose files would then be the same.
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

// Returns the minimum over all ranks, so that all make the same plan.
Bytes least_of_ranks(const OpenedRun& run, const std::string& what, Bytes bytes) {
  if (!run.ranks) return bytes;
  for (const std::string& other : run.ranks->world().exchange(what, std::to_string(bytes))) {
    bytes = std::min(bytes, Bytes{std::stoll(other)});
  }
  return bytes;
}

// Sets the GPU's free memory and what it can register of the host's.
void look_for_gpu_room(OpenedRun& run) {
  if (run.elsewhere || run.inputs.device != DeviceKind::kCuda || run.machine.gpus.empty()) return;
  const int gpu = run.ranks ? run.ranks->groups().gpu : 0;
  run.machine.gpu_room = least_of_ranks(
      run, "the GPU's room",
      gpu_room(run.machine.gpus.at(static_cast<size_t>(gpu)).memory_bytes, cuda_free_bytes(gpu)));
  // Elsewhere no limit is known, and a trial would take a second of every start.
  std::optional<Bytes> own;
  if (is_wsl2()) own = find_pin_limit(run.machine.host_available());
  const Bytes found = least_of_ranks(run, "memory for the GPU", own.value_or(kPinTrialBytes));
  if (found < kPinTrialBytes) run.machine.pinnable = found;
}

// Checks the GPU. Call it before LibTorch's first computation, which selects GPU kernels once.
void ready_gpu(const RunConfig& config, const FoundGpus& found, int gpu, int32_t ranks) {
  require_gpus(config, found, ranks);
  if (device_kind(config) != DeviceKind::kCuda) return;
  require_sound_gpu(
      self_check_of(found.usable.at(static_cast<size_t>(gpu)), gpu, cache_directory(config)));
  prepare_cuda(gpu);
}

// Sets the run's machines.
void take_machine(ReadRun& run, const std::optional<Machine>& elsewhere) {
  run.here = probe_machine();
  run.machine = elsewhere.value_or(run.here);
  run.elsewhere = elsewhere.has_value();
}

// Divides the target machine's cores among its ranks.
void divide_cores(ReadRun& run, int32_t ranks_per_node) {
  run.ranks_per_node = ranks_per_node;
  run.machine.physical_cores = std::max(1, run.machine.physical_cores / ranks_per_node);
  run.machine.logical_cores = std::max(1, run.machine.logical_cores / ranks_per_node);
}

// Gives every GPU of the target machine a rank, unless the numbers are given.
void take_assumed(ReadRun& run, const AssumedRanks& assumed) {
  const bool cuda = device_kind(run.config) == DeviceKind::kCuda;
  const auto gpus = static_cast<int32_t>(cuda ? run.machine.gpus.size() : 0);
  const int32_t places = std::max(1, gpus);
  const int32_t ranks = assumed.ranks > 0 ? assumed.ranks : run.elsewhere ? places : 1;
  const int32_t per_node = assumed.per_node > 0 ? assumed.per_node : std::min(ranks, places);
  if (run.elsewhere && gpus > 0 && per_node > gpus) {
    throw ConfigError("--ranks-per-node " + std::to_string(per_node) + ": the machine has " +
                      std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") +
                      ", and each rank needs one; --gpus plans for a machine with more");
  }
  run.topology = topology_of(run.config.fsdp, ranks, per_node);
  divide_cores(run, per_node);
}

// Reads the run file. --any-base is part of the configuration, so that the run's record has it.
RunConfig read_config(const RunArguments& arguments, const LoadOptions& options) {
  RunConfig config = load_run_config(arguments.files, arguments.overrides, options);
  if (arguments.any_base && config.adapter.is_new()) {
    throw ConfigError(
        "--any-base has no effect, because neither adapter.path nor --from names an adapter");
  }
  config.adapter.any_base = config.adapter.any_base || arguments.any_base;
  take_adapter_kind(config);
  return config;
}

}  // namespace

std::unique_ptr<ModelSource> open_source(const RunConfig& config, ModelDirectory::Weights weights) {
  auto source = std::make_unique<ModelSource>(config, weights);
  check_positions(config, source->arch());
  check_groups(adamw_options(config), source->spec());
  check_files(config, *source);
  check_new_rows(*source);
  check_base_form(*source);
  return source;
}

ReadRun read_run(const RunArguments& arguments, const AssumedRanks& assumed, SetupFor purpose) {
  ReadRun run;
  // A plan does not depend on how long the run trains.
  run.config = read_config(arguments, {.length = false});
  const FoundGpus found = find_gpus();
  if (assumed.machine && run.config.device.kind == DeviceSection::Kind::kAuto) {
    run.config.device.kind =
        assumed.machine->gpus.empty() ? DeviceSection::Kind::kCpu : DeviceSection::Kind::kCuda;
  }
  resolve_device(run.config, found);
  if (purpose == SetupFor::kComputing) {
    ready_gpu(run.config, found, 0, 1);
  } else if (device_kind(run.config) == DeviceKind::kCuda && !found.usable.empty()) {
    prepare_cuda(0);  // for measuring units
  }
  run.weights = assumed.weights;
  run.probe_memory = assumed.probe_memory;
  take_machine(run, assumed.machine);
  take_assumed(run, assumed);
  return run;
}

OpenedRun::OpenedRun(ReadRun read) : ReadRun(std::move(read)) {
  // Threads are set before the model is opened, whose tables are LibTorch's first computation.
  Machine computing = machine;
  const int cores = elsewhere ? here.physical_cores : here.physical_cores / ranks_per_node;
  computing.physical_cores = std::max(1, std::min(cores, computing.physical_cores));
  compute = set_compute_threads(compute_threads(config, computing));
  source = open_source(config, weights);
  check_export_format(config, *source);
  inputs = plan_inputs(config, source->spec(), machine);
  inputs.export_bytes = export_bytes(config, *source, /*merged=*/false);
  inputs.topology = topology;
  inputs.ranks_per_node = ranks_per_node;
  inputs.data_bytes = estimate_data_bytes(config);
  if (config.adapter.on() || !config.train.freeze.empty()) {
    if (!source->base().random() && !source->directory().quantised()) {
      inputs.model_files = std::make_shared<const FrozenFiles>(source->frozen_dtypes());
    }
  }
  if (config.offload.parameters == OffloadSection::Parameters::kFiles) {
    inputs.frozen_files = inputs.model_files;
  }
  if (source->packing().on()) {
    inputs.frozen_files = std::make_shared<const FrozenFiles>(source->frozen_dtypes());
    inputs.keep_frozen = config.offload.parameters == OffloadSection::Parameters::kHost;
    // Only matrices that are packed as published could stay in the files instead.
    const bool movable = inputs.keep_frozen && !config.adapter.packs();
    inputs.model_files = movable ? inputs.frozen_files : nullptr;
  }
  choose_gather(config, ranks ? &ranks->groups() : nullptr, inputs);
  look_for_gpu_room(*this);
  // Drives of another machine cannot be examined.
  if (!elsewhere) {
    for (const std::string& directory : inputs.nvme.directories) {
      inputs.nvme.wear.push_back(read_drive_wear(directory));
      inputs.nvme.rooms.push_back(read_drive_room(directory));
    }
  }
  check_distinct_drives(inputs.nvme);
  inputs.nvme.seconds_per_step = measured_step_seconds(config.run.dir + "/metrics.jsonl");
}

OpenedRun join_run(const RunArguments& arguments) {
  ReadRun run;
  run.config = read_config(arguments, {});
  with_data_files(run.config.data);  // throws before anything is created
  for (const auto& [name, set] : evaluation_sets(run.config)) with_data_files(set.data);
  const FoundGpus found = find_gpus();
  resolve_device(run.config, found);
  const auto ranks = run.ranks = std::make_shared<RunRanks>(run.config, found.usable.size());
  try {
    const int gpu = ranks->groups().gpu;
    agree_on_gpus(ranks->world(), run.config, found, gpu);
    ready_gpu(run.config, found, gpu, gpu + 1);
    run.topology = ranks->topology();
    take_machine(run, std::nullopt);
    divide_cores(run, ranks->info().local_size);
    OpenedRun opened(std::move(run));
    check_run_export(opened.config, opened.source->directory());
    agree_on_run(opened);
    if (opened.source->arch().moe.balance != 0.0) ranks->add_routers();
    return opened;
  } catch (const std::exception& error) {
    ranks->world().report_failure(error.what());
    throw;
  }
}

}  // namespace longshore
