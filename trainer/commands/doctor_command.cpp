// The `doctor` command reports this machine's problems with remedies and measures its speed.
#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "config/run_config.h"
#include "device/compute_threads.h"
#include "offload/forecast/rates_text.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/run_environment.h"
#include "trainer/doctor/diagnosis.h"
#include "trainer/doctor/measure_rates.h"

namespace longshore {
namespace {

struct DoctorOptions {
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
std::vector<DirectoryFacts> try_directories(const DoctorOptions& options, const RunConfig& config) {
  if (!options.of_run()) return {try_directory("here", ".")};
  std::vector<DirectoryFacts> directories;
  if (!config.run.dir.empty()) directories.push_back(try_directory("run.dir", config.run.dir));
  for (const std::string& directory : config.offload.nvme) {
    directories.push_back(try_directory("offload.nvme", directory));
  }
  return directories;
}

RateOptions rate_options(const DoctorOptions& options, const RunConfig& config,
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

DescribedMachine measure_machine(const DoctorOptions& options, const RunConfig& config,
                                 const MachineFacts& facts, const KnownRates& known) {
  set_compute_threads(facts.machine.physical_cores);
  DescribedMachine described;
  described.name = facts.machine.cpu_model;
  described.machine = facts.machine;
  described.rates = measure_rates(facts.machine, rate_options(options, config, facts.directories));
  described.sources = {described.rates.source};
  described.program = build_id();
  known.keep(described);
  log_info("saved in " + known.path() + "; `longshore plan` uses it");
  return described;
}

// Measures with the run's number of threads and the unit size that the run resolves.
void measure_run(const DoctorOptions& options, OpenedRun opened, const KnownRates& known) {
  set_compute_threads(opened.compute.threads);
  const MeasuredRun run(std::move(opened));
  const int units = measure_units(run, known, options.seconds);
  log_info("ran " + std::to_string(units) + " units of the run's model");
}

DescribedMachine known_machine(const DoctorOptions& options, const KnownRates& known) {
  if (const auto machine = known.find()) return *machine;
  throw ConfigError("--save " + options.save +
                    ": this machine has not been measured yet; add --rates to measure it");
}

// Returns kFailure if a problem would end a run.
int run_doctor(const DoctorOptions& options) {
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
  const std::vector<Diagnosis> diagnoses = diagnose(facts);
  Json json = to_json(diagnoses);
  if (!options.json) print_raw(format_diagnoses(diagnoses));
  const KnownRates known(cache_directory(config), facts.machine);
  std::optional<DescribedMachine> machine;
  if (options.rates) {
    machine = measure_machine(options, config, facts, known);
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

void add_doctor(CommandArguments command, CommandLine& line) {
  DoctorOptions& options = call_with_options(command, line, run_doctor);
  options.run.overrides = line.overrides;
  command.add_option("files", options.run.files,
                     "run files whose directories are checked; default: the working directory");
  command.add_flag("--json", options.json, "print the result as one JSON object");
  const CommandOption rates = command.add_flag(
      "--rates", options.rates,
      "measure the speed of this machine in a minute or two, so that `longshore plan` can forecast "
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
      "write the description of this machine to a file for `longshore plan --machine`");
}

}  // namespace

extern const Command kDoctorCommand = {
    .group = CommandGroup::kLook,
    .name = "doctor",
    .description = "check this machine: driver, limits, drives, clocks; names remedies",
    .add = add_doctor};

}  // namespace longshore
