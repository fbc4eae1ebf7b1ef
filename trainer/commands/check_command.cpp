// The `check` command: checks the run file, model, data, GPU and machine that a run needs.
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/run_config.h"
#include "device/compute_threads.h"
#include "offload/forecast/forecast_text.h"
#include "pinned/pinned_arena.h"
#include "trainer/commands/command.h"
#include "trainer/commands/input_check.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/gpu_check.h"
#include "trainer/device/run_environment.h"
#include "trainer/machine/diagnosis.h"
#include "trainer/machine/measure_rates.h"
#include "trainer/model/model_source.h"
#include "trainer/report/data_inspection.h"
#include "trainer/verify/verify.h"

namespace longshore {
namespace {

// ---- check run ----

struct CheckRunOptions {
  RunArguments run;
  bool json = false;
};

// Returns every problem with its exit code, and the notes.
Json as_json(const CheckedConfig& checked, const CheckedInputs& inputs, int exit_code) {
  Json problems = Json::array();
  for (const std::string& text : checked.problems) {
    problems.push_back({{"exit_code", static_cast<int>(ExitCode::kConfig)}, {"text", text}});
  }
  for (const InputProblem& problem : inputs.problems) {
    problems.push_back({{"exit_code", static_cast<int>(problem.code)}, {"text", problem.text}});
  }
  Json found = {{"valid", exit_code == 0},
                {"exit_code", exit_code},
                {"problems", std::move(problems)},
                {"notes", inputs.notes}};
  if (inputs.source) {
    found["family"] = inputs.source->arch().family;
    found["parameters"] = inputs.source->spec().parameter_elements();
    found["units"] = inputs.source->spec().units.size();
  }
  return found;
}

int exit_code_of(const CheckedConfig& checked, const CheckedInputs& inputs) {
  if (!checked.problems.empty()) return static_cast<int>(ExitCode::kConfig);
  return inputs.problems.empty() ? 0 : static_cast<int>(inputs.problems.front().code);
}

int check_run(const CheckRunOptions& options) {
  const CheckedConfig checked =
      check_run_config(options.run.files, options.run.overrides, {.length = false});
  const CheckedInputs inputs = check_inputs(checked.config);
  const int exit_code = exit_code_of(checked, inputs);
  if (options.json) {
    print_json(as_json(checked, inputs, exit_code));
    return exit_code;
  }
  for (const std::string& problem : checked.problems) log_error(problem);
  for (const InputProblem& problem : inputs.problems) log_error(problem.text);
  for (const std::string& note : inputs.notes) log_warning(note);
  if (exit_code != 0) return exit_code;
  const RunConfig& config = checked.config;
  print_out("valid: %s, %s parameters in %zu units; the first rows of %zu files were read\n",
            inputs.source->arch().family.c_str(),
            format_count(inputs.source->spec().parameter_elements()).c_str(),
            inputs.source->spec().units.size(), config.data.train.size() + config.data.eval.size());
  if (config.train.steps == 0 && config.train.epochs == 0.0) {
    print_out("to train, add steps = 100 or epochs = 1 under [train]\n");
  }
  return 0;
}

void add_check_run(CommandArguments check, CommandLine& line) {
  CommandArguments command = check.add_subcommand(
      "run",
      "check a run file and all that the run reads, without allocating memory; reports all errors "
      "at once");
  CheckRunOptions& options = call_with_options(command, line, check_run);
  add_run_files(command, line, options.run);
  command.add_flag("--json", options.json,
                   "print the result as one JSON object, including problems");
}

// ---- check model ----

struct CheckModelOptions : VerifyOptions {
  bool json = false;
};

// Returns ExitCode::kData if a check failed.
int check_model(const CheckModelOptions& options) {
  const Findings findings = verify_model(options);
  if (options.json) {
    print_json(to_json(findings, options.model));
  } else {
    print_out("%s", format_findings(findings, options.model).c_str());
  }
  return static_cast<int>(findings.failed() ? ExitCode::kData : ExitCode::kDone);
}

void add_check_model(CommandArguments check, CommandLine& line) {
  CommandArguments command = check.add_subcommand(
      "model", "check a model before training: tensors, tokenizer, template, numbers");
  CheckModelOptions& options = call_with_options(command, line, check_model);
  command.add_option("model", options.model, "model directory, or hub id in the local cache")
      .required();
  command.add_option("--against", options.against, "base model to compare with");
  command.add_option("--python", options.python,
                     "Python with transformers, to compare the first layers with");
  command.add_number("--layers", options.layers, 0, kMostTokens,
                     "number of first layers to run; 0: all");
  command.add_number("--tokens", options.tokens, 1, int64_t{1} << 16,
                     "tokens of the longest text to run");
  command.add_flag("--json", options.json, "print the result as one JSON object");
}

// ---- check data ----

struct CheckDataOptions {
  RunArguments run;
  std::string rows = "0:3";  // row numbers in the files, before packing
  std::string html;          // output page; empty: none
  bool json = false;         // rows only, one object per line
  bool evaluation = false;   // data.eval instead of data.train
};

// Parses "0:10", or a single number.
std::pair<int64_t, int64_t> parse_range(const std::string& text) {
  const auto wrong = [&text] {
    return ConfigError("--rows=" + text + ": expected a range of rows such as 0:10");
  };
  const size_t colon = text.find(':');
  const std::string first = text.substr(0, colon);
  const std::string last = colon == std::string::npos ? "" : text.substr(colon + 1);
  for (const std::string& part : {first, last}) {
    if (part.find_first_not_of("0123456789") != std::string::npos || part.size() > 15) {
      throw wrong();
    }
  }
  if (first.empty() || (last.empty() && colon != std::string::npos)) throw wrong();
  const int64_t begin = std::stoll(first);
  const int64_t end = last.empty() ? begin + 1 : std::stoll(last);
  if (end <= begin) throw wrong();
  return {begin, end};
}

bool stdout_takes_colour() {
  return ::isatty(STDOUT_FILENO) != 0 && log_uses_colour();
}

int check_data(const CheckDataOptions& options) {
  const auto [first, last] = parse_range(options.rows);
  const RunConfig config =
      load_run_config(options.run.files, options.run.overrides, {.length = false});
  const ModelSource source(config);
  const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
  const DataSection named = with_data_files(config.data);
  HoldOut part{.fraction = config.eval.split, .seed = static_cast<uint64_t>(config.run.seed)};
  const bool held_out = options.evaluation && config.eval.split > 0.0;
  if (held_out) part.part = HoldOut::Part::kHeldOut;
  const std::vector<std::string>& files =
      options.evaluation && !held_out ? named.eval : named.train;
  if (files.empty()) {
    throw ConfigError(
        "--eval: data.eval is empty and eval.split is 0: there is nothing to inspect");
  }
  const PrepareOptions prepare = preparation.options(files);
  const std::vector<InspectedRow> rows =
      held_out ? inspect_part(prepare, part, first, last) : inspect_rows(prepare, first, last);
  if (options.json) {
    for (const InspectedRow& row : rows) print_json_line(row_as_json(row));
    return 0;
  }
  const DataStatistics statistics = measure_data(config, preparation, files, part);
  if (!options.html.empty()) {
    write_output_file(options.html, inspection_page(statistics, rows));
    print_out("%s\n", options.html.c_str());
    return 0;
  }
  print_out("%s\n", describe_statistics(statistics).c_str());
  for (const InspectedRow& row : rows) {
    print_raw(describe_row(row, stdout_takes_colour()) + "\n");
  }
  return 0;
}

void add_check_data(CommandArguments check, CommandLine& line) {
  CommandArguments command = check.add_subcommand(
      "data", "show the rows that a run trains on, with trained tokens, counts, lengths, packing");
  CheckDataOptions& options = call_with_options(command, line, check_data);
  add_run_files(command, line, options.run);
  command.add_option("--rows", options.rows, "range of rows, such as 0:10");
  command.add_option("--html", options.html, "write an HTML page to this file");
  command.add_flag("--json", options.json, "print one JSON object per row and line");
  command.add_flag("--eval", options.evaluation,
                   "show data.eval, or the rows that eval.split holds out, instead of data.train");
}

// ---- check gpu ----

struct CheckGpuOptions {
  int gpu = 0;
  bool json = false;
};

// Prints the differences, and returns ExitCode::kGpu if there are any.
int compare_gpu(const CheckGpuOptions& options) {
  const std::vector<std::string> differences = check_gpu(options.gpu);
  const bool same = differences.empty();
  if (options.json) {
    print_json({{"gpu", options.gpu}, {"same", same}, {"differences", differences}});
  } else {
    for (const std::string& line : differences) print_out("%s\n", line.c_str());
    if (same) print_out("GPU %d gives the same results as the CPU\n", options.gpu);
  }
  return static_cast<int>(same ? ExitCode::kDone : ExitCode::kGpu);
}

void add_check_gpu(CommandArguments check, CommandLine& line) {
  CommandArguments command = check.add_subcommand(
      "gpu", "compare a GPU with the CPU; every run does this before it uses a GPU");
  CheckGpuOptions& options = call_with_options(command, line, compare_gpu, CommandRanks::kAll);
  command.add_number("--gpu", options.gpu, 0, 1023, "number of the GPU");
  command.add_flag("--json", options.json, "print the differences as one JSON object");
}

// ---- check machine ----

struct CheckMachineOptions {
  RunArguments run;
  bool json = false;
  bool rates = false;
  bool units = false;
  bool drives_full = false;
  double seconds = 0.5;
  std::string save;

  bool of_run() const { return !run.files.empty() || !run.overrides.empty(); }
  bool measures_units() const { return units || (rates && !run.files.empty()); }
};

// Checks the output directories of the run files, or without run files the working directory.
std::vector<DirectoryFacts> try_directories(const CheckMachineOptions& options,
                                            const RunConfig& config) {
  if (!options.of_run()) return {try_directory("here", ".")};
  std::vector<DirectoryFacts> directories;
  if (!config.run.dir.empty()) directories.push_back(try_directory("run.dir", config.run.dir));
  for (const std::string& directory : config.offload.nvme) {
    directories.push_back(try_directory("offload.nvme", directory));
  }
  return directories;
}

RateOptions rate_options(const CheckMachineOptions& options, const RunConfig& config,
                         const std::vector<DirectoryFacts>& directories) {
  RateOptions rates;
  rates.seconds = options.seconds;
  rates.say = [](const std::string& text) { log_info(text); };
  if (options.drives_full) rates.written = kFullDriveBytes;
  rates.drives = config.offload.nvme;
  if (!directories.empty()) rates.files = directories.front().path;
  for (const std::string& directory : rates.drives) {
    const Bytes most = bytes_to_be_written(directory, rates.written);
    log_info("up to " + format_bytes(most) + " will be written to " + directory);
  }
  return rates;
}

// Measures with the run's number of threads and the unit size that the run resolves.
void measure_run(const CheckMachineOptions& options, OpenedRun opened, const KnownRates& known) {
  set_compute_threads(opened.compute.threads);
  const MeasuredRun run(std::move(opened));
  const int units = measure_units(run, known, options.seconds);
  log_info("ran " + std::to_string(units) + " units of the run's model");
}

DescribedMachine known_machine(const CheckMachineOptions& options, const KnownRates& known) {
  if (const auto machine = known.find()) return *machine;
  throw ConfigError("--save " + options.save +
                    ": this machine has not been measured yet; add --rates to measure it");
}

// Returns kFailure if a problem would end a run.
int check_machine(const CheckMachineOptions& options) {
  if (options.units && options.run.files.empty()) {
    throw ConfigError("--units needs the model of a run file; name a run file");
  }
  // read_run reports errors in a run file before the measurements start.
  std::optional<OpenedRun> run;
  if (options.measures_units()) run.emplace(read_run(options.run, {}, SetupFor::kComputing));
  MachineFacts facts = read_machine_facts();
  RunConfig config;
  if (options.of_run()) {
    config = load_run_config(options.run.files, options.run.overrides, {.complete = false});
  }
  facts.directories = try_directories(options, config);
  if (!facts.gpus.usable.empty()) {
    facts.pinnable = find_pin_limit(facts.machine.host_available()).value_or(kPinTrialBytes);
  }
  const std::vector<Diagnosis> diagnoses = diagnose(facts);
  Json json = to_json(diagnoses);
  if (!options.json) print_raw(format_diagnoses(diagnoses));
  const KnownRates known(cache_directory(config), facts.machine);
  std::optional<DescribedMachine> machine;
  if (options.rates) {
    machine =
        measure_and_keep(facts.machine, rate_options(options, config, facts.directories), known);
    json["rates"] = rates_to_json(machine->rates);
    if (!options.json) print_raw("\n" + format_rates(machine->rates));
  }
  if (run) measure_run(options, std::move(*run), known);
  if (options.json) print_json(json);
  if (!options.save.empty()) {
    if (!machine) machine = known_machine(options, known);
    write_output_file(options.save, machine_to_toml(*machine));
  }
  return static_cast<int>(any_failed(diagnoses) ? ExitCode::kFailure : ExitCode::kDone);
}

void add_check_machine(CommandArguments check, CommandLine& line) {
  CommandArguments command = check.add_subcommand(
      "machine", "check this machine: driver, limits, drives, clocks; names remedies");
  CheckMachineOptions& options = call_with_options(command, line, check_machine);
  options.run.overrides = line.overrides;
  command.add_option("files", options.run.files,
                     "run files whose directories are checked; default: the working directory");
  command.add_flag("--json", options.json, "print the result as one JSON object");
  const CommandOption rates = command.add_flag(
      "--rates", options.rates,
      "measure the speed of this machine in a minute or two, so that longshore plan can forecast "
      "the time of a run; with run files, also their drives and the units of their model");
  command
      .add_flag("--units", options.units,
                "measure only the units of the run files' model, if the rates of this machine are "
                "already known")
      .excludes(rates);
  command.add_number("--seconds", options.seconds, 0.01, 60.0, "duration of each measurement");
  command
      .add_flag("--drives-full", options.drives_full,
                "write far more than the drives' caches hold; prints the amount first")
      .needs(rates);
  command.add_option(
      "--save", options.save,
      "write the description of this machine to a file for longshore plan --machine");
}

void add_check(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  add_check_run(command, line);
  add_check_model(command, line);
  add_check_data(command, line);
  add_check_gpu(command, line);
  add_check_machine(command, line);
}

}  // namespace

extern const Command kCheckCommand = {
    .group = CommandGroup::kTrain,
    .name = "check",
    .description = "check a run file, a model, training data, a GPU or this machine",
    .add = add_check};

}  // namespace longshore
