// The `eval` command computes the loss of a model on data.eval.
#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/data/run_prepare.h"
#include "trainer/use/evaluator.h"
#include "trainer/use/loaded_run.h"

namespace longshore {
namespace {

struct EvalOptions {
  RunArguments run;
  std::string source = "auto";
  bool json = false;
};

int run_eval(const EvalOptions& options) {
  const LoadedRun run = load_run(options.run, options.source);
  const RunConfig& config = run.setup.config;
  if (!has_evaluation_data(config)) {
    throw ConfigError("data.eval is empty and eval.split is 0: there is nothing to do");
  }
  const StopCheck no_stop = [] {};
  const SequenceData data =
      load_sequences(config, *run.setup.source, SequenceUse::kEvaluate, no_stop);
  const Evaluation result =
      evaluate(*run.engine, data, config.eval.sequences, config.train.micro_batch.value(), no_stop);
  if (options.json) {
    const Json object = {{"model", run.origin},      {"step", run.step.value},
                         {"loss", result.loss},      {"perplexity", result.perplexity},
                         {"tokens", result.tokens},  {"trained_tokens", result.trained_tokens},
                         {"seconds", result.seconds}};
    print_json_line(object);
  } else {
    print_out("%s  loss %.6f  perplexity %.3f  %lld trained tokens\n", run.origin.c_str(),
              result.loss, result.perplexity, static_cast<long long>(result.trained_tokens));
  }
  return 0;
}

void add_eval(CommandArguments command, CommandLine& line) {
  EvalOptions& options = call_with_options(command, line, run_eval);
  add_run_files(command, line, options.run);
  add_source(command, options.source);
  command.add_flag("--json", options.json, "print the result as one JSON object");
}

}  // namespace

extern const Command kEvalCommand = {.group = CommandGroup::kUse,
                                     .name = "eval",
                                     .description = "compute the loss on data.eval",
                                     .add = add_eval};

}  // namespace longshore
