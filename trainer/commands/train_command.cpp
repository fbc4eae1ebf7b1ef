// The `train` command runs the training.
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/run_config.h"
#include "offload/plan/plan_text.h"
#include "trainer/commands/command.h"
#include "trainer/commands/input_check.h"
#include "trainer/device/run_environment.h"
#include "trainer/directory/run_directory.h"
#include "trainer/loop/run_loop.h"
#include "trainer/metrics/trace_file.h"
#include "trainer/model/export_run.h"
#include "trainer/run/end_command.h"
#include "trainer/run/signal_flag.h"
#include "trainer/run/tracker_process.h"
#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_setup.h"
#include "trainer/setup/run_space.h"
#include "trainer/use/prompt_writer.h"

namespace longshore {
namespace {

struct TrainOptions {
  RunArguments run;
  std::vector<std::string> command;  // the original arguments
  std::string trace;                 // output file for the timeline; empty: none
};

// Writes the run's final status to run.json. Never throws, because the message that ended the run
// must reach the user.
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

// Returns the status that the previous process left, if this run resumes from it.
RunStatus status_before(const RunDirectory& directory, const RunConfig& config) {
  RunStatus status;
  const std::optional<RunStatus> before = RunDirectory::read_status(directory.path());
  if (!before) return status;
  if (before->state == RunStatus::State::kRunning) {
    log_info("the previous process ended without a message, at step " +
             std::to_string(before->step.value) + " or later (killed, or the machine went down)");
  }
  if (config.checkpoint.resume == "auto") status = *before;
  status.state = RunStatus::State::kRunning;
  return status;
}

// Writes the files that describe a start, after all checks have passed.
void write_beginning(const RunDirectory& directory, const MeasuredRun& setup, const TierPlan& plan,
                     const std::vector<std::string>& command, const RunStatus& status,
                     const PlanScreen& screen) {
  directory.write("config.toml", to_toml(setup.config));
  directory.write_command(command);
  Json environment = run_environment();
  environment["compute"] = {{"threads", setup.compute.threads},
                            {"inter_op_threads", setup.compute.inter_op_threads},
                            {"mkl_cbwr", setup.compute.mkl_cbwr}};
  directory.write("env.json", json_text(environment, 2) + "\n");
  auto json = plan_to_json(plan, setup.machine);
  json["time"] = forecast_to_json(screen.forecast, screen.source);
  directory.write("plan.txt", format_screen(plan, setup.machine, screen) + "\n" +
                                  format_plan(plan, setup.machine));
  directory.write("plan.json", json.dump(2) + "\n");
  directory.write_status(status);
}

// A resumed run has shown its whole plan before.
void show_beginning(const MeasuredRun& setup, const TierPlan& plan, const PlanScreen& screen,
                    const RunDirectory& directory) {
  if (is_resuming(setup.config, directory)) {
    log_info(format_brief(plan, screen) + "the whole plan: " + directory.file("plan.txt"));
  } else {
    log_info(format_screen(plan, setup.machine, screen));
  }
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

// Throws on all ranks if the first one found a problem. Collective.
void refuse_start(const RunRanks& ranks, const std::vector<InputProblem>& problems) {
  std::string mine;
  if (!problems.empty()) {
    mine = std::to_string(static_cast<int>(problems.front().code)) + "\n" +
           joined(problems, "\n", [](const InputProblem& problem) { return problem.text; });
  }
  const std::string found = ranks.world().exchange("what the run reads", mine).front();
  const size_t code = found.find('\n');
  if (code == std::string::npos) return;
  throw Error(static_cast<ExitCode>(std::stoi(found)), found.substr(code + 1));
}

// Returns what stands against the start once the files of the plan on drives are known.
std::vector<InputProblem> space_problems(const MeasuredRun& setup, const TierPlan& plan) {
  if (!setup.ranks->first()) return {};
  const auto space = read_run_space(setup.config, setup.source->spec(),
                                    run_export_bytes(setup.config, *setup.source), &plan.drives,
                                    setup.inputs.ranks_per_node);
  const std::string refusal = space ? space_refusal(*space) : "";
  if (refusal.empty()) return {};
  return {{ExitCode::kDoesNotFit, refusal}};
}

// Holds what rank 0 does after the end of a run that has begun, whatever ended it.
struct AfterRun {
  std::optional<TrackerProcess> tracker;
  std::optional<RunEnd> end;

  // The run's memory is free, and the other ranks know of its end.
  void finish(const RunSection& run) {
    tracker.reset();
    if (end) run_end_command(run, *end);
  }
};

int train(const MeasuredRun& setup, const std::vector<std::string>& command,
          const std::string& trace_path, AfterRun& after) {
  const TierPlan plan = setup.plan();
  refuse_start(*setup.ranks, space_problems(setup, plan));
  PlanForecast forecast(&setup);
  const bool first = setup.ranks->first();
  const std::string& path = setup.config.run.dir;
  const RunDirectory directory = first ? RunDirectory::open(path) : RunDirectory::join(path);
  SignalFlag signals(first ? directory.save_file() : "", first ? Announce::kYes : Announce::kNo);
  RunStatus status;
  PlanScreen screen;
  if (first) {
    status = status_before(directory, setup.config);
    screen = forecast.screen(plan, false);
    show_beginning(setup, plan, screen, directory);
  }
  std::optional<TraceFile> trace;
  if (!trace_path.empty()) trace.emplace(trace_path, setup.ranks->rank());
  bool begun = false;
  const auto begin = [&](Step step) {
    const std::string before = directory.read_config();
    write_beginning(directory, setup, plan, command, status, screen);
    begun = true;
    if (step.value > 0) say_changes(before, setup.config);
  };
  std::optional<StartedRun> run;
  std::string exported;
  // A refused start does not overwrite the status of an earlier run.
  const auto end = [&](int exit_code, const std::string& message) {
    if (!begun) return;
    write_end(directory, run ? run->ledger.status() : status, exit_code, message);
    after.end = RunEnd{.exit_code = exit_code, .exported = exported, .message = message};
  };
  try {
    run.emplace(setup, plan, directory, signals, begin, trace ? &*trace : nullptr);
    if (first) {
      run->reporter.check_plan(forecast.check(plan),
                               [&forecast](const PlanCheck& check) { forecast.learn(check); });
      const LogSection& log = setup.config.log;
      if (log.sends_wandb()) after.tracker.emplace(path, log.wandb);
    }
    RunLoop loop(&*run);
    const int exit_code = loop.run();
    if (trace && first) {
      log_info("timeline: " + trace->path() + " (open *.json at ui.perfetto.dev)\n" +
               trace->ledger_text());
    }
    if (trace) trace->finish();
    exported = loop.exported();
    const std::string stopped = loop.failure().empty() ? signals.stop_text() : loop.failure();
    end(exit_code, exit_code == 0 ? "" : stopped);
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

// Looks at the data and at the space for checkpoints before units are measured.
std::vector<InputProblem> problems_of_start(const OpenedRun& run) {
  if (!run.ranks->first()) return {};
  std::vector<InputProblem> problems = check_data_files(run.config, *run.source);
  if (const auto space = read_run_space(run.config, run.source->spec(),
                                        run_export_bytes(run.config, *run.source))) {
    const std::string refusal = space_refusal(*space);
    if (!refusal.empty()) problems.push_back({ExitCode::kDoesNotFit, refusal});
  }
  return problems;
}

int run_train(const TrainOptions& options) {
  OpenedRun opened = join_run(options.run);
  const std::shared_ptr<RunRanks> ranks = opened.ranks;
  const RunSection section = opened.config.run;
  AfterRun after;
  try {
    refuse_start(*ranks, problems_of_start(opened));
    MeasuredRun setup(std::move(opened));
    if (const auto needs = sample_needs(setup)) setup.decode_samples(*needs);
    const int exit_code = train(setup, options.command, options.trace, after);
    after.finish(section);
    return exit_code;
  } catch (const std::exception& error) {
    // Other ranks receive the failure reason before this rank exits.
    ranks->world().report_failure(error.what());
    after.finish(section);
    throw;
  }
}

void add_train(CommandArguments command, CommandLine& line) {
  TrainOptions& options = call_with_options(command, line, run_train, CommandRanks::kAll);
  options.command = line.arguments;
  add_run_files(command, line, options.run);
  add_any_base(command, options.run);
  command.add_option("--trace", options.trace,
                     "write a timeline of all copies, collectives, computations and updates "
                     "to this file, for Perfetto; *.svg: a drawing of the last step");
}

}  // namespace

extern const Command kTrainCommand = {.group = CommandGroup::kTrain,
                                      .name = "train",
                                      .description = "train a model, or resume its run",
                                      .add = add_train};

}  // namespace longshore
