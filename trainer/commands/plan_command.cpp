// plan: what lives where, and whether it fits.
#include "base/errors.h"
#include "base/log.h"
#include "base/output.h"
#include "base/own_file.h"
#include "offload/plan/plan_text.h"
#include "offload/schedule/schedule_text.h"
#include "trainer/commands/command.h"
#include "trainer/data/data_files.h"
#include "trainer/data/run_prepare.h"
#include "trainer/setup/run_setup.h"
#include "trainer/setup/units_choice.h"

namespace longshore {
namespace {

struct PlanOptions {
  RunArguments run;
  AssumedRanks assumed;
  bool json = false;
  bool schedule = false;  // the operations of a training step instead of the bytes
  std::string svg;        // a file for the schedule, drawn; empty: none
};

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

int run_plan(const PlanOptions& options) {
  RunSetup setup = prepare_run(options.run, options.assumed);
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
    if (setup.config.train.steps == 0 && setup.config.train.epochs == 0.0) {
      print_out("to train, add steps = 100 or epochs = 1 under [train]\n");
    }
  }
  for (const std::string& note : run_notes(setup, plan)) log_warning(note);
  if (plan.fits()) return 0;
  throw DoesNotFitError(explain_misfit(setup.inputs, setup.machine));
}

void add_plan(CLI::App& command, CommandLine& line) {
  PlanOptions& options = call_with_options(command, line, run_plan);
  add_run_files(command, line, options.run);
  CLI::Option* json = command.add_flag("--json", options.json, "as one JSON object");
  command.add_flag("--schedule", options.schedule, "the operations of a training step instead")
      ->excludes(json);
  command.add_option("--schedule-svg", options.svg, "draw the schedule into this file");
  add_number(command, "--ranks", options.assumed.ranks, 1, 1 << 20, "plan for so many ranks");
  add_number(command, "--ranks-per-node", options.assumed.per_node, 1, 1 << 20,
             "that share a machine's memory");
}

}  // namespace

extern const Command kPlanCommand = {.group = CommandGroup::kTrain,
                                     .name = "plan",
                                     .sentence = "what lives where, and whether it fits",
                                     .add = add_plan};

}  // namespace longshore
