// validate: everything of a run that can be checked without allocating.
#include "base/errors.h"
#include "base/log.h"
#include "base/output.h"
#include "config/run_config.h"
#include "trainer/commands/command.h"
#include "trainer/commands/input_check.h"

namespace longshore {
namespace {

struct ValidateOptions {
  RunArguments run;
};

int run_validate(const ValidateOptions& options) {
  const CheckedConfig checked =
      check_run_config(options.run.files, options.run.overrides, {.length = false});
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

void add_validate(CLI::App& command, CommandLine& line) {
  ValidateOptions& options = call_with_options(command, line, run_validate);
  add_run_files(command, line, options.run);
}

}  // namespace

extern const Command kValidateCommand = {
    .group = CommandGroup::kTrain,
    .name = "validate",
    .sentence = "check everything that needs no memory; all errors at once",
    .add = add_validate};

}  // namespace longshore
