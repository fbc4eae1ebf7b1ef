// Makes MeasuredRun (run_setup.h): chooses and measures a run's units, chooses its micro-batch, and
// the stripes of its state over drives.
#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/processor.h"
#include "base/texts.h"
#include "device/gpu_tensors.h"
#include "nvme/probe/drive_probe.h"
#include "nvme/store/state_file.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/plan/decode_plan.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/run_environment.h"
#include "trainer/model/export_run.h"
#include "trainer/setup/micro_batch_choice.h"
#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_setup.h"
#include "trainer/setup/run_space.h"

namespace longshore {
namespace {

ProbeOptions probe_options(const MeasuredRun& run) {
  const PlanInputs& inputs = run.inputs;
  ProbeOptions options;
  // Without the GPU the CPU measures: tensors take about the same memory, and the plan's allowance
  // covers the scratch of the GPU's kernels.
  options.elsewhere =
      inputs.device == DeviceKind::kCuda && (run.elsewhere || run.machine.gpus.empty());
  options.device = {.kind = options.elsewhere ? DeviceKind::kCpu : inputs.device,
                    .gpu = run.ranks ? run.ranks->groups().gpu : 0,
                    .compute = inputs.state.compute};
  options.threads = run.compute.threads;
  // If the product overflows, the plan rejects it later.
  options.run = {.positions = checked_multiply(inputs.micro_batch, inputs.sequence_tokens())
                                  .value_or(inputs.sequence_tokens()),
                 .longest_document = inputs.max_tokens};
  // With updates in backward the first pass already updates, so it is too late for a check.
  if (inputs.overlap == UpdateOverlap::kBackward) options.whole = WholeShape::kAlways;
  const Machine& here = run.elsewhere ? run.here : run.machine;
  options.memory = run.probe_memory.value_or(here.host_available() /
                                             (run.elsewhere ? 1 : inputs.ranks_per_node));
  options.cache = cache_directory(run.config) + "/workspace";
  options.program = build_id() + "\n" + here.cpu_model;
  if (!run.ranks || run.ranks->first()) {
    options.on_slow = [](const std::string& unit) {
      log_info("measuring the memory of unit " + unit +
               ": it runs once, and later plans read the result from the cache");
    };
  }
  return options;
}

// Measures the units, or reads the cache's folder "workspace", and takes the maxima over ranks.
void measure_workspace(MeasuredRun& run) {
  MeasuredWorkspace measured(run.source->model(), probe_options(run));
  if (run.ranks) {
    measured.take_largest(run.ranks->world().exchange("the units' workspace", measured.text()));
  }
  run.inputs.costs = measured.costs();
  if (measured.units_run() == 0 || (run.ranks && !run.ranks->first())) return;
  const int units = measured.units_run();
  log_info(formatted("ran %d unit%s in %.2f s to measure memory", units, units == 1 ? "" : "s",
                     measured.seconds()));
}

// Returns the costs of the model in other units; this rank alone measures them at the first call.
UnitCosts costs_when_asked(const MeasuredRun& run, std::shared_ptr<const Model> model) {
  const auto known = std::make_shared<UnitCosts>();
  return [known, model = std::move(model), options = probe_options(run)](int64_t positions,
                                                                         int64_t longest) {
    if (*known == nullptr) *known = MeasuredWorkspace(*model, options).costs();
    return (*known)(positions, longest);
  };
}

// The cuts of "auto", from the coarsest.
constexpr std::array kCuts = {UnitsChoice::Kind::kBlock, UnitsChoice::Kind::kHalf,
                              UnitsChoice::Kind::kPiece};

std::shared_ptr<const Model> cut_model(const MeasuredRun& run, UnitsChoice::Kind kind) {
  UnitsChoice units;
  units.kind = kind;
  return run.source->in_units(units);
}

void take(MeasuredRun& run, UnitsChoice::Kind kind) {
  run.source->choose(cut_model(run, kind));
  run.inputs.model = &run.source->spec();
}

// Returns whether `mine` is true on every rank. Collective.
bool everywhere(const MeasuredRun& run, const std::string& what, bool mine) {
  if (!run.ranks) return mine;
  for (const std::string& answer : run.ranks->world().exchange(what, mine ? "yes" : "no")) {
    if (answer != "yes") return false;
  }
  return true;
}

// Returns whether the state on this rank's first drive was made for these units.
bool drive_holds(const MeasuredRun& run, const ModelSpec& model) {
  NvmeTier tier = run.inputs.nvme;
  const Rank rank = run.ranks ? run.ranks->rank() : Rank(0);
  const auto made = read_state_file(tier.directories.front(), rank.value).manifest;
  if (!made || made->drives != static_cast<int32_t>(tier.directories.size())) return false;
  tier.geometry = made->geometry;
  const PlanInputs& inputs = run.inputs;
  const NvmeStoreOptions options = nvme_options(tier, inputs.state, inputs.topology, rank, {});
  const auto layouts = make_layouts(model, inputs.topology.shard_ranks, inputs.state.compute);
  return NvmeStore::make_map(layouts, options).layout_hash() == made->layout_hash;
}

// Selects and measures the cut whose state the drives hold; false if they hold none.
bool take_held(MeasuredRun& run) {
  if (!run.inputs.nvme.state || run.config.checkpoint.resume != "auto") return false;
  for (const UnitsChoice::Kind kind : kCuts) {
    const bool mine = drive_holds(run, cut_model(run, kind)->spec());
    if (!everywhere(run, "the units on drives", mine)) continue;
    take(run, kind);
    measure_workspace(run);
    return true;
  }
  return false;
}

// Selects and measures the coarsest cut that fits on every rank; the finest if none fits.
UnitsChoice::Kind take_coarsest(MeasuredRun& run) {
  for (const UnitsChoice::Kind kind : kCuts) {
    take(run, kind);
    measure_workspace(run);
    const bool mine = draft_tier_plan(run.inputs, run.machine).fits();
    if (everywhere(run, "whether the units fit", mine)) return kind;
  }
  return kCuts.back();
}

bool speaks(const MeasuredRun& run) {
  return !run.ranks || run.ranks->first();
}

// Resolves and measures fsdp.units.
void resolve_units(MeasuredRun& run) {
  if (run.config.fsdp.units.kind != UnitsChoice::Kind::kAuto) {
    measure_workspace(run);
  } else if (!take_held(run)) {
    const UnitsChoice::Kind kind = take_coarsest(run);
    if (kind != kCuts.front() && speaks(run)) {
      log_info("fsdp.units: \"" + std::string(name_of(kind)) + "\", because blocks do not fit");
    }
  }
}

// Returns the first rank's text on every rank. Collective.
std::string of_first_rank(const MeasuredRun& run, const std::string& what, std::string mine) {
  return run.ranks ? run.ranks->world().exchange(what, mine).front() : std::move(mine);
}

void say_micro_batch(const MeasuredRun& run, const std::string& why) {
  if (!speaks(run)) return;
  log_info("train.micro_batch: " + std::to_string(run.inputs.micro_batch) + ", " + why);
}

// Takes the micro-batch of the run that this start continues; false if there is none. The other
// ranks may not see the run's directory. Collective.
bool keep_micro_batch(MeasuredRun& run) {
  const int64_t begun = speaks(run) ? begun_micro_batch(run.config).value_or(0) : 0;
  run.inputs.micro_batch =
      std::stoll(of_first_rank(run, "the micro-batch of the run", std::to_string(begun)));
  if (run.inputs.micro_batch > 0) {
    say_micro_batch(run, "as the run began");
    return true;
  }
  run.inputs.micro_batch = 1;
  return false;
}

PlanInputs with_micro_batch(const MeasuredRun& run, int64_t size) {
  PlanInputs inputs = run.inputs;
  inputs.micro_batch = size;
  return inputs;
}

// Removes the sizes whose plans do not fit on every rank by costs that are fitted to the measured
// ones. The first stays. Collective.
void keep_fitting(const MeasuredRun& run, std::vector<int64_t>& sizes) {
  std::string mine;
  for (const int64_t size : sizes) {
    const bool fits = draft_tier_plan(with_micro_batch(run, size), run.machine).fits();
    mine += fits ? '1' : '0';
  }
  std::vector<std::string> all = {mine};
  if (run.ranks) all = run.ranks->world().exchange("micro-batches that fit", mine);
  for (size_t i = sizes.size() - 1; i > 0; --i) {
    const auto fits = [i](const std::string& answers) { return answers.at(i) == '1'; };
    if (!std::ranges::all_of(all, fits)) sizes.erase(sizes.begin() + static_cast<ptrdiff_t>(i));
  }
}

// Returns the forecasts of a step with each size; empty if they would not tell sizes apart.
std::vector<double> seconds_of_sizes(const MeasuredRun& run, const std::vector<int64_t>& sizes) {
  PlanForecast forecast(&run);
  if (!forecast.tells_micro_batches_apart()) return {};
  std::vector<double> seconds;
  for (const int64_t size : sizes) {
    const PlanInputs inputs = with_micro_batch(run, size);
    const StepForecast step = forecast.step(inputs, draft_tier_plan(inputs, run.machine));
    if (!step.known()) return {};
    seconds.push_back(step.seconds);
  }
  return seconds;
}

// Resolves train.micro_batch = "auto" after the units were measured with one sequence. Sizes that
// fit by that are measured one by one until one fits as measured; nearly always it is the first,
// because fitted costs are upper bounds. Rates may differ between ranks, so the first decides.
// Collective.
void choose_micro_batch(MeasuredRun& run) {
  const UnitCosts of_one = run.inputs.costs;
  std::vector<int64_t> sizes = micro_batch_sizes(
      run.inputs.sequences_per_step, run.inputs.topology.ranks, run.inputs.sequence_tokens());
  if (sizes.size() > 1) keep_fitting(run, sizes);
  bool timed = false;
  while (sizes.size() > 1) {
    std::string chosen;
    if (speaks(run)) {
      const std::vector<double> seconds = seconds_of_sizes(run, sizes);
      timed = !seconds.empty();
      chosen = std::to_string(preferred_micro_batch(sizes, seconds, run.inputs.device));
    }
    const int64_t size = std::stoll(of_first_rank(run, "the micro-batch", chosen));
    if (size == 1) break;
    run.inputs.micro_batch = size;
    measure_workspace(run);
    const bool mine = draft_tier_plan(run.inputs, run.machine).fits();
    if (everywhere(run, "whether the micro-batch fits", mine)) break;
    std::erase_if(sizes, [size](int64_t other) { return other >= size; });
    run.inputs.micro_batch = 1;
    run.inputs.costs = of_one;
  }
  const bool gpu = run.inputs.device == DeviceKind::kCuda;
  say_micro_batch(run, timed ? "the fastest that fits, by the measured rates of this machine"
                       : gpu ? "the largest that fits, of at most " +
                                   std::to_string(kMostPositions) + " positions"
                             : "which keeps the cores of a CPU busy");
}

// Lists the other cuts for the plan's comparison and its refusal.
void list_other_units(MeasuredRun& run) {
  run.inputs.units.clear();
  std::vector<OtherUnits>& others = run.inputs.other_units;
  for (const UnitsChoice::Kind kind : kCuts) {
    const std::shared_ptr<const Model> other = cut_model(run, kind);
    const std::string name = '"' + std::string(name_of(kind)) + '"';
    if (other->spec() == *run.inputs.model) {
      if (run.inputs.units.empty()) run.inputs.units = name;
      continue;
    }
    // A model without large tables has equal units in two cuts.
    if (!others.empty() && *others.back().model == other->spec()) continue;
    others.push_back(
        {.name = name, .model = {other, &other->spec()}, .costs = costs_when_asked(run, other)});
  }
  if (run.inputs.units.empty()) run.inputs.units = "a table";
}

// Creates a missing directory and logs it. Its parent must exist, because the path may contain a
// typo or the drive may not be mounted.
void make_drive_directory(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(directory, ignored)) return;
  fs::path path = fs::absolute(directory, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string parent = path.parent_path().string();
  if (!fs::is_directory(parent, ignored)) {
    throw ConfigError("offload.nvme: " + directory + ": neither it nor " + parent +
                      " exists; mount the drive, or make the directory first");
  }
  make_directories(directory);
  log_info("offload.nvme: made " + directory + ", in " + parent);
}

void probe_unknown_drives(const NvmeTier& tier, const TierPlan& draft) {
  for (size_t i = 0; i < tier.directories.size(); ++i) {
    const std::string& directory = tier.directories[i];
    if (draft.drives.files[i] < kWorthTuningBytes || read_drive_tuning(directory)) continue;
    const DriveTuning tuning = tune_drive(directory, IoEngine::kAuto);
    log_info(directory + ": chunks of " + format_bytes(tuning.settings.chunk_bytes) + ", " +
             std::to_string(tuning.settings.depth) + " in flight, by a short probe");
  }
}

// Sets the stripes from earlier probes of all drives; measures nothing.
void read_drive_geometry(MeasuredRun& run) {
  NvmeTier& tier = run.inputs.nvme;
  std::vector<DriveTuning> tunings;
  for (const std::string& directory : tier.directories) {
    const std::optional<DriveTuning> tuning = read_drive_tuning(directory);
    if (!tuning) return;  // equal stripes are better if a drive's speed is unknown
    tunings.push_back(*tuning);
  }
  if (tunings.empty()) return;
  const TunedDrives tuned = combine(tunings);
  tier.geometry = tuned.geometry;
  tier.depth = tuned.depth;
}

// Sets the stripes: those of existing state files, else from probes. One rank of each node probes
// drives without a probe result if their files are large enough. Collective.
void resolve_drive_geometry(MeasuredRun& run) {
  NvmeTier& tier = run.inputs.nvme;
  if (!tier.used()) return;
  const RankInfo& info = run.ranks->info();
  if (info.local_rank == 0) {
    for (const std::string& directory : tier.directories) make_drive_directory(directory);
    probe_unknown_drives(tier, draft_tier_plan(run.inputs, run.machine));
  }
  run.ranks->world().exchange("the drives' speeds", "");  // waits for the probes
  read_drive_geometry(run);
  if (!tier.state) return;
  const std::optional<Manifest> made =
      read_state_file(tier.directories.front(), info.rank).manifest;
  if (made && made->drives == static_cast<int32_t>(tier.directories.size())) {
    tier.geometry = made->geometry;
  }
}

}  // namespace

MeasuredRun::MeasuredRun(OpenedRun opened) : OpenedRun(std::move(opened)) {
  if (!ranks && !elsewhere) read_drive_geometry(*this);
  const bool chooses = !config.train.micro_batch && !keep_micro_batch(*this);
  resolve_units(*this);
  if (chooses) choose_micro_batch(*this);
  config.train.micro_batch = inputs.micro_batch;
  list_other_units(*this);
  if (ranks) resolve_drive_geometry(*this);
}

namespace {

// Returns what a plan needs to know of decoding. Throws ConfigError if the model cannot.
DecodeUse decode_use(const MeasuredRun& run, const DecodeNeeds& needs) {
  const Model* const model = &run.source->model();
  const at::ScalarType compute = scalar_type_of(run.inputs.state.compute);
  if (!model->layer_states({.longest = 1, .compute = compute})) {
    throw ConfigError(run.source->directory().path() +
                      ": this model cannot decode with states: its units do not say what they keep "
                      "of a sequence (Model::layer_states)");
  }
  const int64_t longest = run.config.data.max_tokens;
  return {.sequences = std::clamp<int64_t>(needs.sequences, 1, kMostSequences),
          .longest = needs.longest > 0 ? std::min(needs.longest, longest) : longest,
          .sequence_bytes = [model, compute](int64_t tokens) {
            return bytes_of_sequence(*model->layer_states({.longest = tokens, .compute = compute}));
          }};
}

}  // namespace

TierPlan MeasuredRun::plan_for_inference(const std::optional<DecodeNeeds>& needs) const {
  PlanInputs without_drives = inputs;
  without_drives.nvme = {};
  without_drives.decode = {};
  const DecodeUse decode = needs ? decode_use(*this, *needs) : DecodeUse{};
  if (inputs.frozen_files && !inputs.keep_frozen) {
    // Generation runs a pass for each token, so a model that fits in memory is read only once.
    PlanInputs in_memory = without_drives;
    in_memory.keep_frozen = source->packing().on();
    if (!source->packing().on()) in_memory.frozen_files = nullptr;
    std::optional<TierPlan> plan = needs ? draft_decoding_plan(in_memory, machine, decode)
                                         : draft_tier_plan(in_memory, machine);
    if (plan && plan->fits()) return std::move(*plan);
  }
  return needs ? make_decoding_plan(without_drives, machine, decode)
               : make_tier_plan(without_drives, machine);
}

void MeasuredRun::decode_samples(const DecodeNeeds& needs) {
  DecodeUse decode = decoding_beside_training(inputs, machine, decode_use(*this, needs));
  if (ranks) {
    const std::string mine = std::to_string(decode.sequences);
    for (const std::string& other : ranks->world().exchange("sequences that fit", mine)) {
      decode.sequences = std::min<int64_t>(decode.sequences, std::stoll(other));
    }
  }
  inputs.decode = std::move(decode);
}

std::vector<std::string> run_notes(const MeasuredRun& run, const TierPlan& plan) {
  std::vector<std::string> notes;
  const bool cpu = plan.device.kind == DeviceKind::kCpu;
  if (cpu && run.config.precision.compute == DType::kBF16 && !cpu_has_bf16()) {
    notes.push_back(
        "precision.compute = \"bf16\": this CPU has no bf16 instructions, fp32 is several times "
        "faster on it");
  }
  if (!cpu && run.machine.gpus.empty()) {
    notes.push_back("this machine has no GPU: the bytes of the device are estimates");
  }
  if (!run.source->base().has_weights()) {
    notes.push_back(run.source->directory().path() + ": has no weights yet; training needs them");
  }
  const ArchSpec& arch = run.source->arch();
  if (run.config.data.max_tokens > arch.max_positions) {
    notes.push_back("data.max_tokens = " + std::to_string(run.config.data.max_tokens) +
                    " is more than the " + std::to_string(arch.max_positions) +
                    " positions that the model was made for (max_position_embeddings)");
  }
  // On a CPU the fused kernel is no faster than plain operations, so no note is needed.
  if (!cpu && arch.score_cap != 0.0) {
    notes.push_back(
        "attn_logit_softcapping: no fused kernel supports capped scores; the attention of this "
        "model uses plain GPU operations and is slower, most of all for long documents");
  }
  const Bytes free = run.machine.host_available() / run.inputs.ranks_per_node;
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
  if (!run.elsewhere) {
    const auto space =
        read_run_space(run.config, run.source->spec(), run_export_bytes(run.config, *run.source),
                       &plan.drives, run.inputs.ranks_per_node);
    const std::string warning = space ? space_warning(*space) : "";
    if (!warning.empty()) notes.push_back(warning);
  }
  return notes;
}

}  // namespace longshore
