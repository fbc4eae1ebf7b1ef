// validate, plan, train.
#include <optional>

#include "base/errors.h"
#include "base/log.h"
#include "base/output.h"
#include "base/own_file.h"
#include "config/run_config.h"
#include "offload/plan/plan_text.h"
#include "offload/schedule/schedule_text.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/input_check.h"
#include "trainer/run/config_change.h"
#include "trainer/run/data_files.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/run_environment.h"
#include "trainer/run/run_prepare.h"
#include "trainer/run/signal_flag.h"
#include "trainer/run/units_choice.h"
#include "trainer/trainer.h"

namespace longshore {
namespace {

// Sets the last words of a run in run.json, whatever ends it. Never throws: what ended the run is
// what the user has to read.
void write_end(const RunDirectory& directory, RunStatus status, int exit_code,
               const std::string& message) {
  status.state = exit_code == 0     ? RunStatus::State::kDone
                 : exit_code >= 128 ? RunStatus::State::kStopped
                                    : RunStatus::State::kFailed;
  status.exit_code = exit_code;
  status.message = message;
  try {
    directory.write_status(status);
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

// What the process before left, for a run that goes on from it.
RunStatus status_before(const RunDirectory& directory, const RunConfig& config) {
  RunStatus status;
  const std::optional<RunStatus> before = RunDirectory::read_status(directory.path());
  if (!before) return status;
  if (before->state == RunStatus::State::kRunning) {
    log_info("the process before this one ended without a word, at step " +
             std::to_string(before->step.value) + " or later (killed, or the machine went down)");
  }
  if (config.checkpoint.resume == "auto") status = *before;
  status.state = RunStatus::State::kRunning;
  return status;
}

void write_beginning(const RunDirectory& directory, const RunSetup& setup, const TierPlan& plan,
                     const std::vector<std::string>& command, const RunStatus& status) {
  directory.write_config(to_toml(setup.config));
  directory.write_command(command);
  Json environment = run_environment();
  environment["compute"] = {{"threads", setup.compute.threads},
                            {"inter_op_threads", setup.compute.inter_op_threads},
                            {"mkl_cbwr", setup.compute.mkl_cbwr}};
  directory.write_environment(environment);
  directory.write_plan(format_plan(plan, setup.machine));
  directory.write_status(status);
}

void show_beginning(const RunSetup& setup, const TierPlan& plan) {
  log_info(format_plan(plan, setup.machine));
  for (const std::string& note : run_notes(setup, plan)) log_warning(note);
  if (plan.drives.tier.state && plan.drives.tier.versions == 1) {
    log_warning("offload.nvme_versions = 1: " + durability_text(plan));
  }
}

void say_changes(const std::string& before, const RunConfig& config) {
  for (const std::string& change : config_changes(before, to_toml(config))) {
    log_info("changed since the last start: " + change);
  }
}

int train(const RunSetup& setup, const std::vector<std::string>& command,
          const std::string& trace_path) {
  const TierPlan plan = setup.plan();
  const bool first = setup.ranks->first();
  const std::string& path = setup.config.run.dir;
  const RunDirectory directory = first ? RunDirectory::open(path) : RunDirectory::join(path);
  SignalFlag signals(first ? directory.save_file() : "", first ? Announce::kYes : Announce::kNo);
  RunStatus before;
  std::string config_before;
  if (first) {
    before = status_before(directory, setup.config);
    config_before = directory.read_config();
    write_beginning(directory, setup, plan, command, before);
    show_beginning(setup, plan);
  }
  std::optional<TraceFile> trace;
  if (!trace_path.empty()) trace.emplace(trace_path, setup.ranks->rank());
  std::optional<Trainer> trainer;
  const auto end = [&](int exit_code, const std::string& message) {
    if (first) write_end(directory, trainer ? trainer->status() : before, exit_code, message);
  };
  try {
    trainer.emplace(setup, plan, directory, signals, trace ? &*trace : nullptr);
    if (first && trainer->step().value > 0) say_changes(config_before, setup.config);
    const int exit_code = trainer->run();
    if (trace && first) {
      log_info("timeline in " + trace->path() + " (ui.perfetto.dev shows *.json)\n" +
               trace->ledger_text());
    }
    if (trace) trace->finish();
    end(exit_code, exit_code == 0 ? "" : signals.stop_text());
    return exit_code;
  } catch (const Stopped& stopped) {
    end(stopped.exit_code(), signals.stop_text() + " before the first step");
    setup.ranks->world().report_failure(stopped.what());
    return stopped.exit_code();
  } catch (const Error& error) {
    end(static_cast<int>(error.exit_code()), error.what());
    throw;
  } catch (const std::exception& error) {
    end(static_cast<int>(ExitCode::kFailure), error.what());
    throw;
  }
}

// What the training data is, where it was prepared before: a plan reads no rows.
std::vector<std::string> data_lines(const RunConfig& config, const ModelSource& source) {
  try {
    const std::vector<std::string> files = with_data_files(config.data).train;
    const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
    std::vector<std::string> lines = preparation.known(files);
    if (!lines.empty()) return lines;
  } catch (const Error&) {
    // Whoever reads the data says so; a plan can do without.
  }
  return {"not prepared yet; `longshore prepare` counts its tokens"};
}

}  // namespace

int run_validate(const RunArguments& run) {
  const CheckedConfig checked = check_run_config(run.files, run.overrides, {.length = false});
  const CheckedInputs inputs = check_inputs(checked.config);
  for (const std::string& problem : checked.problems) log_error(problem);
  for (const InputProblem& problem : inputs.problems) log_error(problem.text);
  if (!checked.problems.empty()) return static_cast<int>(ExitCode::kConfig);
  if (!inputs.problems.empty()) return static_cast<int>(inputs.problems.front().code);
  const RunConfig& config = checked.config;
  print_out("valid: %s, %lld parameters in %zu units; the first rows of %zu files were read\n",
            inputs.source->arch().family.c_str(),
            static_cast<long long>(inputs.source->spec().parameter_elements()),
            inputs.source->spec().units.size(), config.data.train.size() + config.data.eval.size());
  if (config.train.steps == 0 && config.train.epochs == 0.0) {
    print_out("to train, add steps = 100 or epochs = 1 under [train]\n");
  }
  return 0;
}

int run_plan(const RunArguments& run, const AssumedRanks& assumed, const PlanOptions& options) {
  RunSetup setup = prepare_run(run, assumed);
  settle_units(setup);
  TierPlan plan = draft_tier_plan(setup.inputs, setup.machine);
  if (!options.schedule) compare_units(plan, setup.inputs, setup.machine);
  const StepSchedule& schedule = plan.step.schedules.train;
  if (!options.svg.empty()) {
    // What an operation will take is not known yet: all are drawn alike.
    const std::vector<double> alike(schedule.ops.size(), 1.0);
    write_output_file(options.svg, draw_schedule(schedule, *setup.inputs.model,
                                                 simulate_schedule(schedule, alike)));
    print_out("%s\n", options.svg.c_str());
    return 0;
  }
  const std::string text = options.schedule ? print_schedule(schedule, *setup.inputs.model)
                           : options.json   ? plan_to_json(plan, setup.machine)
                                            : format_plan(plan, setup.machine);
  print_out("%s", text.c_str());
  if (!options.schedule && !options.json && !setup.config.data.train.empty()) {
    print_out("data\n");
    for (const std::string& line : data_lines(setup.config, *setup.source)) {
      print_out("  %s\n", line.c_str());
    }
  }
  for (const std::string& note : run_notes(setup, plan)) log_warning(note);
  if (plan.fits()) return 0;
  throw DoesNotFitError(explain_misfit(setup.inputs, setup.machine));
}

int run_train(const RunArguments& run, const std::vector<std::string>& command,
              const std::string& trace_path) {
  const RunSetup setup = join_run(run);
  try {
    return train(setup, command, trace_path);
  } catch (const std::exception& error) {
    // The others learn why before this rank is gone.
    setup.ranks->world().report_failure(error.what());
    throw;
  }
}

}  // namespace longshore
