// The `validate` command checks everything of a run that needs no allocation.
#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "config/run_config.h"
#include "trainer/commands/command.h"
#include "trainer/commands/input_check.h"
#include "trainer/commands/json_output.h"

namespace longshore {
namespace {

struct ValidateOptions {
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

int run_validate(const ValidateOptions& options) {
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
  print_out("valid: %s, %lld parameters in %zu units; the first rows of %zu files were read\n",
            inputs.source->arch().family.c_str(),
            static_cast<long long>(inputs.source->spec().parameter_elements()),
            inputs.source->spec().units.size(), config.data.train.size() + config.data.eval.size());
  if (config.train.steps == 0 && config.train.epochs == 0.0) {
    print_out("to train, add steps = 100 or epochs = 1 under [train]\n");
  }
  return 0;
}

void add_validate(CommandArguments command, CommandLine& line) {
  ValidateOptions& options = call_with_options(command, line, run_validate);
  add_run_files(command, line, options.run);
  command.add_flag("--json", options.json,
                   "print the result as one JSON object, including problems");
}

}  // namespace

extern const Command kValidateCommand = {
    .group = CommandGroup::kTrain,
    .name = "validate",
    .description = "check a run without allocating memory; reports all errors at once",
    .add = add_validate};

}  // namespace longshore
