// The `eval` command computes the loss of a model on data.eval and eval.sets.
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "model/losses/preference_loss.h"
#include "trainer/commands/command.h"
#include "trainer/data/run_prepare.h"
#include "trainer/metrics/metric_table.h"
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

// The sets of an evaluation, and the model that their losses compare with.
struct EvaluatedSets {
  std::vector<EvaluationSet> sets;
  std::string reference = {};  // StartIdentity::values of preference.reference, if that is named
};

// Loads the sets and their losses. The reference's values are those of the run's start, which
// `start` has the weights of; null if it is not loaded, or if --from replaces its weights.
EvaluatedSets read_sets(const MeasuredRun& setup, Engine* start) {
  const RunConfig& config = setup.config;
  if (!has_evaluation_data(config)) {
    throw ConfigError(
        "data.eval and eval.sets are empty and eval.split is 0: there is nothing to do");
  }
  const StopCheck no_stop = [] {};
  EvaluatedSets read{.sets = load_evaluation_sets(config, *setup.source, no_stop)};
  std::vector<EvaluationSet>& sets = read.sets;
  const std::shared_ptr<const Loss> loss = loss_of(config);
  for (EvaluationSet& set : sets) set.objective = Objective{.loss = loss};
  if (!loss->traits().reference) return read;
  if (has_other_reference(config)) {
    std::vector<const SequenceData*> data;
    for (const EvaluationSet& set : sets) data.push_back(&set.data);
    ComputedReference computed = compute_other_reference(other_reference(setup), data, no_stop);
    for (size_t i = 0; i < sets.size(); ++i) {
      sets[i].objective->references = std::move(computed.values[i]);
    }
    read.reference = computed.model;
    return read;
  }
  if (start == nullptr) {
    throw ConfigError(
        "--from names other weights than the run's, and train.loss compares with those that the "
        "run starts from; give a checkpoint, --preference.reference=DIRECTORY, or "
        "--train.loss=simpo or orpo, which compare with none");
  }
  for (EvaluationSet& set : sets) {
    set.objective->references =
        compute_reference(*start, set.data, loss, config.train.micro_batch.value(), no_stop);
  }
  return read;
}

Json to_json(const Evaluation& result) {
  Json object = {{"loss", result.loss},
                 {"tokens", result.tokens},
                 {"seconds", result.seconds},
                 {"trained_tokens", result.trained_tokens}};
  if (const auto accuracy = token_accuracy(result)) object["token_accuracy"] = *accuracy;
  if (result.summed_loss->traits().judged) {
    const auto sums = result.sums.named<PreferenceSums>();
    object[sums.pairs == 0 ? "rows" : "pairs"] =
        sums.pairs == 0 ? sums.chosen + sums.rejected : sums.pairs;
  }
  // The other rows of the record's table, but for the step and the sets.
  const EvalRecord record = record_of(result);
  for (const MetricRow<EvalRecord>& row : metric_kind<EvalRecord>().rows) {
    const std::string_view key = row.key;
    if (key == "step" || key == "sets" || object.contains(key)) continue;
    if (std::optional<Json> value = row.value(record)) object[row.key] = std::move(*value);
  }
  return object;
}

void print_result(const std::string& name, const Evaluation& result) {
  if (result.summed_loss->traits().judged) {
    const auto sums = result.sums.named<PreferenceSums>();
    const bool paired = sums.pairs > 0;
    print_out("%s  loss %.6f  %s  %s %s\n", name.c_str(), result.loss,
              describe_quality(result).c_str(),
              format_count(paired ? sums.pairs : sums.chosen + sums.rejected).c_str(),
              paired ? "pairs" : "rows");
  } else {
    print_out("%s  loss %.6f  %s  %s trained tokens\n", name.c_str(), result.loss,
              describe_quality(result).c_str(), format_count(result.trained_tokens).c_str());
  }
}

// Throws CheckpointError if the losses of a run's checkpoint compare with another model than its
// training did. `reference` is the identity of preference.reference; empty: the run's own start.
void check_reference(const LoadedRun& run, const std::string& reference) {
  if (!traits_of(run.setup.config.train.loss).reference) return;
  const bool start = reference.empty();
  const std::string& began = start ? run.start.values : run.start.reference;
  const std::string& now = start ? run.found.values : reference;
  if (began.empty() || now.empty() || began == now) return;
  throw CheckpointError((start ? run.setup.source->directory().path() : "preference.reference") +
                        ": the model has other values than when the run began, and train.loss "
                        "compares with these; restore its files");
}

int run_eval(const EvalOptions& options) {
  EvaluatedSets read;
  std::vector<EvaluationSet>& sets = read.sets;
  RunArguments own = options.run;
  // Otherwise the flag is about the adapter that --from names, which load_run() takes.
  own.any_base = own.any_base && options.source == "auto";
  ReadRun asked = read_run(own, {}, SetupFor::kComputing);
  if (has_other_reference(asked.config)) {
    // The reference leaves the memory before the run's model takes it.
    read = read_sets(MeasuredRun(OpenedRun(std::move(asked))), nullptr);
  }
  const LoadedRun run =
      load_run(options.run, options.source, [&read](const LoadedRun& start, bool own) {
        if (read.sets.empty()) read = read_sets(start.setup, own ? start.engine.get() : nullptr);
      });
  check_reference(run, read.reference);
  const RunConfig& config = run.setup.config;
  const Evaluations results = evaluate_sets(*run.engine, sets, config.eval.sequences,
                                            config.train.micro_batch.value(), [] {});
  if (options.json) {
    Json object = to_json(results.whole);
    object["model"] = run.origin;
    object["step"] = run.step.value;
    for (const auto& [name, result] : results.named) object["sets"][name] = to_json(result);
    print_json_line(object);
    return 0;
  }
  print_result(run.origin, results.whole);
  for (const auto& [name, result] : results.named) print_result("  " + name, result);
  return 0;
}

void add_eval(CommandArguments command, CommandLine& line) {
  EvalOptions& options = call_with_options(command, line, run_eval);
  add_run_files(command, line, options.run);
  add_any_base(command, options.run);
  add_source(command, options.source);
  command.add_flag("--json", options.json, "print the result as one JSON object");
}

}  // namespace

extern const Command kEvalCommand = {.group = CommandGroup::kUse,
                                     .name = "eval",
                                     .description = "compute the loss on data.eval and eval.sets",
                                     .add = add_eval};

}  // namespace longshore
