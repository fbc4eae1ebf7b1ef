// The `plan` command prints memory use, forecast time and, with a search, better settings.
#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/toml_document.h"
#include "offload/forecast/decode_forecast.h"
#include "offload/plan/decode_plan.h"
#include "offload/plan/plan_text.h"
#include "offload/schedule/schedule_simulation.h"
#include "trainer/commands/command.h"
#include "trainer/commands/input_check.h"
#include "trainer/data/run_data.h"
#include "trainer/data/run_prepare.h"
#include "trainer/model/adapter_files.h"
#include "trainer/model/export_run.h"
#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_ranks.h"
#include "trainer/setup/run_setup.h"
#include "trainer/setup/run_space.h"
#include "trainer/use/prompt_writer.h"
#include "trainer/use/reference_model.h"

namespace longshore {
namespace {

struct PlanOptions {
  RunArguments run;
  AssumedRanks assumed;
  bool bytes = false;
  bool json = false;
  bool schedule = false;  // print a training step's operations instead
  std::string svg;        // output file for a drawing of the schedule; empty: none
  std::string machine;    // description of a target machine; empty: the local one
  MachineChanges changes;
  std::string memory, drive;  // of changes, as given
  bool search = false;
  SearchScope scope;
  std::string save;  // output directory for the search's run files; empty: none
};

// Describes the training data if it is already prepared, with the steps that train.epochs gives. A
// plan reads no rows.
std::vector<std::string> data_lines(const RunConfig& config, const ModelSource& source) {
  std::vector<std::string> lines;
  try {
    const std::vector<std::string> files = with_data_files(config.data).train;
    const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
    lines = preparation.known(files);
    if (!lines.empty()) {
      const TrainingData data(
          config, load_sequences(config, source, SequenceUse::kTrain, [] {}, Say::kNone));
      if (!data.data().mix.empty()) lines.push_back(data.data().mix);
      const std::string packed = packed_rows_text(config, data.data());
      if (!packed.empty()) lines.push_back(packed);
      if (config.train.steps > 0 || config.train.epochs == 0.0) return lines;
      lines.push_back(formatted("train.epochs = %g: %lld steps of %lld sequences",
                                config.train.epochs, static_cast<long long>(data.total_steps()),
                                static_cast<long long>(config.train.sequences_per_step)));
    }
  } catch (const Error&) {
    // `check run` and `train` report data errors; a plan does not need the data.
  }
  if (!lines.empty()) return lines;
  return {"not prepared yet: longshore prepare, or the start of the run, counts its tokens"};
}

void set_unless_given(std::vector<Override>& overrides, const std::string& key,
                      const std::string& value) {
  const auto given = std::ranges::find(overrides, key, &Override::key);
  if (given == overrides.end()) overrides.push_back({key, value});
}

// Accepts a model's directory, or its config.json alone, as a run file that sets only this model.
// The plan reads neither weights nor data. A saved run file starts from these weights, because
// model.init = "random" is only set by the user.
RunArguments with_models(RunArguments arguments) {
  std::vector<std::string> files;
  for (const std::string& file : arguments.files) {
    std::filesystem::path path(file);
    if (path.filename() == "config.json")
      path = path.parent_path().empty() ? "." : path.parent_path();
    if (!std::filesystem::is_directory(path)) {
      files.push_back(file);
      continue;
    }
    set_unless_given(arguments.overrides, "model.path", path.string());
    set_unless_given(arguments.overrides, "run.dir", "runs/plan");
    set_unless_given(arguments.overrides, "data.train", "[\"train.jsonl\"]");
    set_unless_given(arguments.overrides, "train.epochs", "1");
  }
  arguments.files = std::move(files);
  return arguments;
}

// Returns what `generate` would do with all its prompts at the same time; empty for several ranks,
// because it runs in one process.
std::optional<TierPlan> plan_of_generate(const MeasuredRun& setup) {
  if (setup.inputs.topology.ranks > 1) return std::nullopt;
  try {
    return setup.plan_for_inference(DecodeNeeds{.sequences = kMostSequences});
  } catch (const DoesNotFitError&) {
    return std::nullopt;  // `generate` may still decode shorter sequences, and says which
  }
}

void print_screen(const PlanOptions& options, const MeasuredRun& setup, const TierPlan& plan,
                  PlanForecast& forecast) {
  const PlanScreen screen = forecast.screen(plan, plan.fits() && !options.json);
  if (options.json) {
    auto json = plan_to_json(plan, setup.machine);
    json["time"] = forecast_to_json(screen.forecast, screen.source);
    json["generate"] = nullptr;
    if (const std::optional<TierPlan> generating = plan_of_generate(setup)) {
      json["generate"] = plan_to_json(*generating, setup.machine).at("decoding");
    }
    if (has_other_reference(setup.config)) {
      const TierPlan pass = other_reference(setup).plan_for_inference();
      json["reference"] = {{"device_bytes", pass.device.total}, {"host_bytes", pass.host.total}};
    }
    print_json(json);
    return;
  }
  print_out("%s", (options.bytes ? format_plan(plan, setup.machine)
                                 : format_screen(plan, setup.machine, screen))
                      .c_str());
  if (const std::optional<TierPlan> generating = plan_of_generate(setup)) {
    print_out("generate\n  %s\n",
              describe_decoding(*generating, forecast.decoded_per_second(*generating)).c_str());
  }
  if (has_other_reference(setup.config)) {
    print_out("reference\n  %s\n", describe_other_reference(other_reference(setup)).c_str());
  } else if (traits_of(setup.config.train.loss).reference) {
    print_out(
        "reference\n  before step 1 a pass over the data computes its log-probabilities, in the "
        "run's own memory\n");
  }
  if (setup.config.data.train.empty() || !options.machine.empty()) return;
  print_out("data\n");
  for (const std::string& line : data_lines(setup.config, *setup.source)) {
    print_out("  %s\n", line.c_str());
  }
  if (setup.config.train.steps == 0 && setup.config.train.epochs == 0.0) {
    print_out("to train, add steps = 100 or epochs = 1 under [train]\n");
  }
}

// Sets the key, which may be given already.
void replace(std::vector<Override>& overrides, const std::string& key, const std::string& value) {
  std::erase_if(overrides, [&](const Override& other) { return other.key == key; });
  overrides.push_back({key, value});
}

// Writes for each point a complete run file with the point's keys, and with the micro-batch that
// the search started from where the run file says "auto".
void save_points(const PlanOptions& options, int64_t micro_batch,
                 const std::vector<PlanPoint>& points) {
  make_directories(options.save);
  for (size_t i = 0; i < points.size(); ++i) {
    std::vector<Override> overrides = options.run.overrides;
    replace(overrides, "train.micro_batch", std::to_string(micro_batch));
    for (const KeyChange& change : points[i].changes) replace(overrides, change.key, change.value);
    const std::string path = options.save + "/plan-" + std::to_string(i + 1) + ".toml";
    RunConfig config = load_run_config(options.run.files, overrides);
    config.adapter.any_base = config.adapter.any_base || options.run.any_base;
    take_adapter_kind(config);  // a complete file says which kind it is
    write_output_file(path, to_toml(config));
    log_info(path);
  }
}

// Returns a directory for plans with the drive of a described machine, if the run file names none.
std::string assumed_drive(const RunConfig& config,
                          const std::optional<DescribedMachine>& described) {
  if (!config.offload.nvme.empty() || !described || described->rates.drives.empty()) return {};
  const std::string& directory = described->rates.drives.front().directory;
  return directory == "*" ? "nvme" : directory;
}

// Adds the directory to the points that use the drive. Returns whether one does.
bool name_drive(const std::string& directory, std::vector<PlanPoint>& points) {
  bool named = false;
  for (PlanPoint& point : points) {
    const bool used = std::ranges::any_of(
        point.changes, [](const KeyChange& change) { return change.value == "\"nvme\""; });
    if (!used) continue;
    point.changes.push_back({"offload.nvme", "[" + quote_toml(directory) + "]", {}});
    named = true;
  }
  return named;
}

[[noreturn]] void refuse_search(const PlanOptions& options, const MeasuredRun& setup,
                                const PlanForecast& forecast, const PlanSearch& search) {
  const SearchFailure failure = search.failure();
  if (!failure.unknown.empty() && !forecast.known()) {
    throw DoesNotFitError(
        "the rates of this machine are unknown, so no plan has a time: measure them with "
        "`longshore check machine --rates`, or name a machine with --machine");
  }
  if (!failure.unknown.empty()) {
    throw DoesNotFitError(
        "plans fit, but have no time without these rates: " + joined(failure.unknown, ", ") +
        (options.machine.empty()
             ? "; `longshore check machine --rates` measures them"
             : "; `longshore check machine --rates --save FILE` measures them on "
               "that machine, and --machine reads the file"));
  }
  std::string text = "none of the " + std::to_string(search.plans_drafted()) + " plans fits. ";
  text += failure.changes.empty() ? "The run's own plan is the nearest."
                                  : "The nearest has " + change_text(failure.changes) + ".";
  text += "\n" + explain_misfit(failure.nearest, setup.machine);
  if (!options.scope.formats) {
    text += "\n--formats also searches offload.state_format, which changes results";
  }
  throw DoesNotFitError(text);
}

int run_search(const PlanOptions& options, const MeasuredRun& setup,
               const std::optional<DescribedMachine>& described, PlanForecast& forecast) {
  SearchScope scope = options.scope;
  scope.drive = assumed_drive(setup.config, described);
  PlanSearch search = forecast.search(scope);
  std::vector<PlanPoint> points = search.frontier();
  const bool on_drive = !scope.drive.empty() && name_drive(scope.drive, points);
  if (options.json) {
    print_json(points_to_json(points));
  } else if (!points.empty()) {
    print_out(
        "%s%s%zu plans were compared; of %zu no other is better in every column (--save, --json)\n",
        format_points(points, setup.config.offload.nvme_tbw).c_str(),
        on_drive ? "offload.nvme: put the directory on a fast drive of the machine\n" : "",
        search.plans_drafted(), points.size());
  }
  if (!options.save.empty()) save_points(options, setup.inputs.micro_batch, points);
  if (points.empty()) refuse_search(options, setup, forecast, search);
  return 0;
}

int print_schedules(const PlanOptions& options, const MeasuredRun& setup, const TierPlan& plan,
                    PlanForecast& forecast) {
  const StepSchedule& schedule = plan.step.schedules.train;
  if (options.svg.empty()) {
    print_out("%s", print_schedule(schedule, *setup.inputs.model).c_str());
    return 0;
  }
  std::vector<double> seconds = forecast.operations(plan);
  // If the duration of operations is unknown, all are drawn with the same length.
  if (seconds.empty()) seconds.assign(schedule.ops.size(), 1.0);
  write_output_file(options.svg, draw_schedule(schedule, *setup.inputs.model,
                                               simulate_schedule(schedule, seconds)));
  print_out("%s\n", options.svg.c_str());
  return 0;
}

// Returns the target machine with the changes of the command line; empty: the local one.
std::optional<DescribedMachine> described_machine(const PlanOptions& options) {
  if (options.machine.empty()) return std::nullopt;
  MachineChanges changes = options.changes;
  if (!options.memory.empty()) {
    const std::optional<Bytes> memory = parse_bytes(options.memory);
    if (!memory || *memory < kGiB) {
      throw ConfigError("--ram " + options.memory +
                        ": expected the installed memory, for example 128GiB");
    }
    changes.memory = *memory;
  }
  if (!options.drive.empty()) parse_drive_rates(options.drive, changes);
  return read_machine(options.machine, changes);
}

int run_plan(const PlanOptions& given) {
  PlanOptions options = given;
  options.run = with_models(given.run);
  const bool model_alone = options.run.files.size() < given.run.files.size();
  if (model_alone || !options.machine.empty()) {
    options.assumed.weights = ModelDirectory::Weights::kOptional;
  }
  const std::optional<DescribedMachine> described = described_machine(options);
  if (described) options.assumed.machine = described->machine;
  ReadRun read = read_run(options.run, options.assumed);
  check_backend(read.config);
  OpenedRun opened(std::move(read));
  // The data and the directories of another machine are not looked at.
  const bool starts_here = !described && !model_alone;
  if (starts_here) {
    for (const InputProblem& problem : check_data_files(opened.config, *opened.source)) {
      log_warning(problem.text + "; the run would be refused");
    }
  }
  MeasuredRun setup(std::move(opened));
  if (const auto needs = sample_needs(setup)) setup.decode_samples(*needs);
  TierPlan plan = draft_tier_plan(setup.inputs, setup.machine);
  PlanForecast forecast(&setup, described);
  if (options.search) return run_search(options, setup, described, forecast);
  if (options.schedule || !options.svg.empty()) {
    return print_schedules(options, setup, plan, forecast);
  }
  if (options.bytes || options.json) compare_units(plan, setup.inputs, setup.machine);
  print_screen(options, setup, plan, forecast);
  for (const std::string& note : run_notes(setup, plan)) log_warning(note);
  if (!plan.fits()) throw DoesNotFitError(explain_misfit(setup.inputs, setup.machine));
  if (!starts_here) return 0;
  const auto space = read_run_space(setup.config, setup.source->spec(),
                                    run_export_bytes(setup.config, *setup.source), &plan.drives,
                                    setup.inputs.ranks_per_node);
  const std::string refusal = space ? space_refusal(*space) : "";
  if (!refusal.empty()) throw DoesNotFitError(refusal);
  return 0;
}

void add_plan(CommandArguments command, CommandLine& line) {
  PlanOptions& options = call_with_options(command, line, run_plan);
  add_run_files(command, line, options.run);
  add_any_base(command, options.run);
  command.add_flag("--bytes", options.bytes, "print all bytes of every tier instead of one screen");
  const CommandOption json =
      command.add_flag("--json", options.json, "print the plan as one JSON object");
  command
      .add_flag("--schedule", options.schedule, "print the operations of a training step instead")
      .excludes(json);
  command.add_option("--schedule-svg", options.svg, "draw the schedule to this SVG file");
  const CommandOption machine = command.add_option(
      "--machine", options.machine,
      "target machine: \"RTX 4090\", 2x-rtx-3090 and so on (a wrong name lists all names), or a "
      "file written by `longshore check machine --save FILE`");
  command.add_number("--gpus", options.changes.gpus, 1, 64, "number of GPUs of that machine")
      .needs(machine);
  command.add_option("--ram", options.memory, "installed memory of that machine: 128GiB")
      .needs(machine);
  command
      .add_option("--nvme", options.drive,
                  "rate of that machine's drive by its data sheet: 7GB/s, or 7GB/s,6GB/s as read "
                  "and written")
      .needs(machine);
  const CommandOption search = command.add_flag(
      "--search", options.search,
      "search the keys that do not change results: show the fastest plans that fit, and slower "
      "plans that take less memory");
  command
      .add_flag("--formats", options.scope.formats,
                "also search offload.state_format, which changes results")
      .needs(search);
  command
      .add_option("--save", options.save,
                  "write the run file of each plan of the search to this directory")
      .needs(search);
  command.add_number("--ranks", options.assumed.ranks, 1, 1 << 20,
                     "ranks to plan for (with --machine: one for each of its GPUs)");
  command.add_number("--ranks-per-node", options.assumed.per_node, 1, 1 << 20,
                     "ranks that share one machine (one for each of its GPUs)");
}

}  // namespace

extern const Command kPlanCommand = {
    .group = CommandGroup::kTrain,
    .name = "plan",
    .description = "show whether a run fits, how long it takes, and faster settings",
    .add = add_plan};

}  // namespace longshore
