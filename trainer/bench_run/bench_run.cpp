#include "trainer/bench_run/bench_run.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"
#include "offload/plan/plan_text.h"
#include "trainer/bench_run/bench_directory.h"
#include "trainer/bench_run/bench_plan.h"
#include "trainer/bench_run/bench_row.h"
#include "trainer/data/run_prepare.h"
#include "trainer/directory/run_directory.h"
#include "trainer/loop/run_loop.h"
#include "trainer/machine/measure_rates.h"
#include "trainer/run/signal_flag.h"
#include "trainer/setup/plan_forecast.h"

namespace longshore {
namespace {

constexpr const char* kStopping = "\nstopping after this step; nothing is saved\n";

// Drives are measured where the run's files will be.
bool knows(const std::optional<DescribedMachine>& machine, const std::vector<std::string>& drives) {
  const auto known = [&machine](const std::string& drive) {
    return machine->rates.drive(drive) != nullptr;
  };
  return machine && std::ranges::all_of(drives, known);
}

// Measures the machine if its rates are not known, so that the plan has times. What was measured
// of other drives stays.
void measure_unknown_rates(const std::vector<std::string>& drives) {
  const Machine machine = probe_machine();
  const KnownRates known(cache_directory(RunConfig{}), machine);
  const std::optional<DescribedMachine> before = known.find();
  if (knows(before, drives)) return;
  log_info("measuring this machine for the forecast: a minute or two, once");
  RateOptions options{.drives = drives, .files = {}};
  options.say = [](const std::string& text) { log_info(text); };
  DescribedMachine measured = measure_and_keep(machine, options, known);
  if (!before) return;
  for (const DriveRates& drive : before->rates.drives) {
    if (measured.rates.drive(drive.directory) == nullptr) measured.rates.drives.push_back(drive);
  }
  measured.rates.files_read = before->rates.files_read;
  measured.rates.files_written = before->rates.files_written;
  known.keep(measured);
}

// Throws if the directory has another model than the recipe; a tiny run takes any of the family.
void check_given_model(const BenchRecipe& recipe, const BenchRunOptions& options,
                       const std::string& config) {
  const std::string wanted = bench_model_config(recipe, false);
  const auto arch_of = [](const std::string& text, const std::string& origin) {
    return read_arch_spec(parse_json(text, JsonLimits{}, origin), origin);
  };
  const ArchSpec given = arch_of(config, options.model + "/config.json");
  const ArchSpec expected = arch_of(wanted, recipe.name);
  const int64_t has = make_model_spec(given, {}).parameter_elements();
  const int64_t needs = make_model_spec(expected, {}).parameter_elements();
  if (given.family == expected.family && (options.tiny || has == needs)) return;
  throw ConfigError("--model " + options.model + ": is a " + given.family + " of " +
                    std::to_string(has) + " parameters, and the recipe " + recipe.name +
                    " is for " + recipe.model + ", a " + expected.family + " of " +
                    std::to_string(needs));
}

// Writes the run's inputs, at most a few MiB, and returns what the recipe is run with.
BenchTarget prepare_target(const BenchRecipe& recipe, const BenchRunOptions& options,
                           const BenchDirectory& directory) {
  BenchTarget target{.model = options.model,
                     .random = options.model.empty(),
                     .directory = directory.file("run"),
                     .rows = directory.file("rows.jsonl"),
                     .drives = directory.drives(),
                     .device_memory = options.device_memory,
                     .host_memory = options.host_memory,
                     .steps = options.steps,
                     .tiny = options.tiny};
  std::string config;
  if (target.random) {
    target.model = directory.file("model");
    make_directories(target.model);
    config = bench_model_config(recipe, options.tiny);
    write_file_durably(target.model + "/config.json", config);
  } else {
    const ModelDirectory given =
        ModelDirectory::open(options.model, ModelDirectory::Weights::kOptional, mxfp4_families());
    config = given.config_text();
    check_given_model(recipe, options, config);
  }
  const int64_t tokens = options.tiny ? kTinyTokens : std::stoll(recipe.value("data.max_tokens"));
  const int64_t sequences =
      options.tiny ? kTinySequences : std::stoll(recipe.value("train.sequences_per_step"));
  const Json json = parse_json(config, JsonLimits{}, target.model + "/config.json");
  write_random_rows(target.rows, json.at("vocab_size").get<int64_t>(), options.steps * sequences,
                    tokens);
  return target;
}

std::string other_recipes(const BenchRunOptions& options, const BenchDirectory& directory) {
  std::vector<std::string> folders;
  for (const std::string& drive : options.nvme) folders.push_back(bench_folder(drive));
  return bench_list(directory.file("list"), {.model = {},
                                             .directory = {},
                                             .rows = {},
                                             .drives = folders,
                                             .device_memory = options.device_memory,
                                             .host_memory = options.host_memory,
                                             .tiny = options.tiny});
}

// The state of a run in `train`, without checkpoints: the same steps, record and display. Returns
// the exit code, and sets the bytes that files take on drives.
int train_steps(const MeasuredRun& run, const TierPlan& plan, const BenchDirectory& directory,
                Bytes& drive_bytes) {
  const RunDirectory record = RunDirectory::open(run.config.run.dir);
  SignalFlag signals("", Announce::kYes);
  const OtherAnnouncement announcement(kStopping);
  try {
    StartedRun started(run, plan, record, signals, [&](Step) {
      record.write("config.toml", to_toml(run.config));
      record.write("plan.txt", format_plan(plan, run.machine));
      record.write("plan.json", plan_to_json(plan, run.machine).dump(2) + "\n");
    });
    RunLoop loop(&started, SavesRun::kNo);
    const int exit_code = loop.run();
    drive_bytes = directory.drive_bytes();
    RunStatus status = started.ledger.status();
    status.state = exit_code == 0 ? RunStatus::State::kDone : RunStatus::State::kStopped;
    status.exit_code = exit_code;
    record.write_status(status);
    return exit_code;
  } catch (const Stopped& stopped) {
    return stopped.exit_code();
  }
}

void append_row(const std::string& path, const std::string& row) {
  write_all(open_own_file(path, O_WRONLY | O_CREAT | O_APPEND), row);
}

void require_one_rank(const RunRanks& ranks) {
  if (ranks.info().size == 1) return;
  throw ConfigError("bench run: measures one GPU with one process; start it without a launcher");
}

int measure_recipe(const BenchRecipe& recipe, const BenchRunOptions& options,
                   const BenchDirectory& directory) {
  const BenchTarget target = prepare_target(recipe, options, directory);
  const BenchPlan bench = plan_bench_run(recipe, target);
  if (!bench.fits) {
    throw DoesNotFitError(bench.refusal + "\nThe recipes here:\n" +
                          other_recipes(options, directory));
  }
  if (!options.tiny) measure_unknown_rates(target.drives);
  OpenedRun opened = join_run(bench.arguments);
  require_one_rank(*opened.ranks);
  const MeasuredRun run(std::move(opened));
  const TierPlan plan = run.plan();
  PlanForecast forecast(&run);
  const PlanScreen screen = forecast.screen(plan, false);
  log_info(format_screen(plan, run.machine, screen));
  Bytes drive_bytes = 0;
  const int exit_code = train_steps(run, plan, directory, drive_bytes);
  if (exit_code != 0) return exit_code;
  log_info("comparing the bits of one block with those of the block resident on the device");
  const BlockCheck check = check_block(bench.arguments, run, directory.file("block"));
  const std::optional<DescribedMachine> known = known_rates(run).find();
  const MeasuredSteps steps = read_measured_steps(target.directory + "/metrics.jsonl");
  const Json row = bench_row({.recipe = recipe,
                              .target = target,
                              .bench = bench,
                              .run = run,
                              .plan = plan,
                              .forecast = forecast_to_json(screen.forecast, screen.source),
                              .rates = known ? &known->rates : nullptr,
                              .steps = steps,
                              .drive_bytes = drive_bytes,
                              .check = check});
  const std::string line = json_text(row) + "\n";
  print_raw(line);
  if (!options.out.empty()) append_row(options.out, line);
  if (check.result() != "different") return 0;
  throw GpuError("bench run: one block gives other bits through slots than resident on the device");
}

}  // namespace

int run_bench_run(const BenchRunOptions& options) {
  for (const auto& [name, size] : {std::pair("--device-memory ", &options.device_memory),
                                   std::pair("--host-memory ", &options.host_memory)}) {
    if (size->empty() || parse_bytes(*size)) continue;
    throw ConfigError(name + *size + ": not a size such as 24GiB");
  }
  if (options.list) {
    const BenchDirectory directory("", {});
    print_raw(other_recipes(options, directory));
    return 0;
  }
  const BenchRecipe& recipe = find_bench_recipe(options.recipe);
  if (recipe.reads_files() && options.model.empty()) {
    throw ConfigError("bench run " + recipe.name + ": its base stays in the model's files; give " +
                      "the directory of " + recipe.model + " with --model");
  }
  if (!options.nvme.empty() && !recipe.may_use_drives()) {
    throw ConfigError("bench run " + recipe.name + ": keeps nothing on drives; leave out --nvme");
  }
  const BenchDirectory directory(options.keep, options.nvme);
  return measure_recipe(recipe, options, directory);
}

}  // namespace longshore
