// The `eval` command computes the loss of a model on data.eval.
#include <cmath>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/data/run_prepare.h"
#include "trainer/report/metric_table.h"
#include "trainer/use/evaluator.h"
#include "trainer/use/loaded_run.h"
#include "trainer/use/reference_model.h"

namespace longshore {
namespace {

struct EvalOptions {
  RunArguments run;
  std::string source = "auto";
  bool json = false;
};

// Data and loss of the evaluation. The reference's values are those of the run's start.
struct EvalData {
  std::optional<SequenceData> data = {};
  std::optional<PairObjective> objective = {};
};

// `start` is the run with the weights of its start; null if it is not loaded, or if `own` is false
// because --from replaces them.
EvalData read_data(const MeasuredRun& setup, Engine* start) {
  const RunConfig& config = setup.config;
  if (!has_evaluation_data(config)) {
    throw ConfigError("data.eval is empty and eval.split is 0: there is nothing to do");
  }
  const StopCheck no_stop = [] {};
  EvalData read{.data = load_sequences(config, *setup.source, SequenceUse::kEvaluate, no_stop)};
  const std::optional<PreferenceOptions> options = preference_options(config);
  if (!options) return read;
  read.objective = PairObjective{.options = *options};
  if (!has_reference(options->loss)) return read;
  if (has_other_reference(config)) {
    read.objective->references =
        compute_other_reference(other_reference(setup), {&*read.data}, no_stop).front();
    return read;
  }
  if (start == nullptr) {
    throw ConfigError(
        "--from names other weights than the run's, and train.loss compares with those that the "
        "run starts from; give a checkpoint, --preference.reference=DIRECTORY, or "
        "--train.loss=simpo or orpo, which compare with none");
  }
  read.objective->references =
      compute_reference(*start, *read.data, *options, config.train.micro_batch.value(), no_stop);
  return read;
}

Json to_json(const LoadedRun& run, const Evaluation& result) {
  Json object = {{"model", run.origin},       {"step", run.step.value},
                 {"loss", result.loss},       {"tokens", result.tokens},
                 {"seconds", result.seconds}, {"trained_tokens", result.trained_tokens}};
  if (const std::optional<PolicyMeans> policy = means_of_policy(result)) {
    object["policy/ratio"] = policy->ratio;
    object["policy/clip_fraction"] = policy->clip_fraction;
    return object;
  }
  const std::optional<PreferenceMeans> means = means_of_pairs(result);
  if (!means) {
    object["perplexity"] = result.perplexity;
    return object;
  }
  const PreferenceSums& sums = result.preference;
  if (sums.pairs == 0) {
    object["rows"] = sums.chosen + sums.rejected;
  } else {
    object["pairs"] = sums.pairs;
  }
  for (const PreferenceMetric& metric : preference_metrics()) {
    const double mean = (*means).*metric.mean;
    if (!std::isnan(mean)) object[metric.key] = mean;
  }
  return object;
}

int run_eval(const EvalOptions& options) {
  EvalData read;
  ReadRun asked = read_run(options.run, {}, SetupFor::kComputing);
  if (has_other_reference(asked.config)) {
    // The reference leaves the memory before the run's model takes it.
    read = read_data(MeasuredRun(OpenedRun(std::move(asked))), nullptr);
  }
  const LoadedRun run =
      load_run(options.run, options.source, [&read](const LoadedRun& start, bool own) {
        if (!read.data) read = read_data(start.setup, own ? start.engine.get() : nullptr);
      });
  const RunConfig& config = run.setup.config;
  const Evaluation result = evaluate(
      *run.engine, *read.data, config.eval.sequences, config.train.micro_batch.value(), [] {},
      read.objective ? &*read.objective : nullptr);
  if (options.json) {
    print_json_line(to_json(run, result));
  } else if (const PreferenceSums& sums = result.preference; !sums.empty()) {
    const bool paired = sums.pairs > 0;
    print_out("%s  loss %.6f  %s  %lld %s\n", run.origin.c_str(), result.loss,
              describe_quality(result).c_str(),
              static_cast<long long>(paired ? sums.pairs : sums.chosen + sums.rejected),
              paired ? "pairs" : "rows");
  } else if (result.policy.tokens > 0) {
    print_out("%s  loss %.6f  %s  %lld trained tokens\n", run.origin.c_str(), result.loss,
              describe_quality(result).c_str(), static_cast<long long>(result.trained_tokens));
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
