// eval, generate, export: what a trained, or untrained, model is used for.

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "trainer/commands/commands.h"
#include "trainer/evaluator.h"
#include "trainer/generator.h"
#include "trainer/report/checkpoint_card.h"
#include "trainer/run/export_run.h"
#include "trainer/run/loaded_run.h"
#include "trainer/run/run_prepare.h"

namespace longshore {
namespace {

std::string describe_origin(const LoadedRun& run) {
  return run.origin + (run.step.value > 0 ? ", step " + std::to_string(run.step.value)
                                          : ", as it was before training");
}

}  // namespace

int run_eval(const RunArguments& arguments, const std::string& from, bool json) {
  const LoadedRun run = load_run(arguments, from);
  const RunConfig& config = run.setup.config;
  if (!has_evaluation_data(config)) {
    throw ConfigError("data.eval is empty and eval.split is 0: there is nothing to do");
  }
  const StopCheck no_stop = [] {};
  const SequenceData data =
      load_sequences(config, *run.setup.source, SequenceUse::kEvaluate, no_stop);
  const Evaluation result =
      evaluate(*run.engine, data, config.eval.sequences, config.train.micro_batch, no_stop);
  if (json) {
    const Json object = {{"model", run.origin},      {"step", run.step.value},
                         {"loss", result.loss},      {"perplexity", result.perplexity},
                         {"tokens", result.tokens},  {"trained_tokens", result.trained_tokens},
                         {"seconds", result.seconds}};
    print_out("%s\n", object.dump().c_str());
  } else {
    print_out("%s  loss %.6f  perplexity %.3f  %lld trained tokens\n", run.origin.c_str(),
              result.loss, result.perplexity, static_cast<long long>(result.trained_tokens));
  }
  return 0;
}

int run_generate(const RunArguments& arguments, const GenerateOptions& options) {
  const LoadedRun run = load_run(arguments, options.source);
  const Tokenizer tokenizer =
      Tokenizer::load(tokenizer_directory(run.setup.config, run.setup.source->directory().path()));
  const RunConfig& config = run.setup.config;
  const std::vector<Generated> results =
      generate(*run.engine, tokenizer,
               {.prompts = options.prompts,
                .max_new_tokens = options.max_new_tokens,
                .longest = config.data.max_tokens,
                .sampling = {.temperature = options.temperature,
                             .top_k = options.top_k,
                             .top_p = options.top_p,
                             .seed = static_cast<uint64_t>(config.run.seed)}});
  log_info("weights of " + describe_origin(run));
  for (const Generated& result : results) {
    if (options.json) {
      const Json object = {
          {"model", run.origin}, {"step", run.step.value},          {"prompt", result.prompt},
          {"text", result.text}, {"new_tokens", result.new_tokens}, {"ended", result.ended}};
      print_raw(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    } else {
      print_out("%s%s\n\n", result.prompt.c_str(), result.text.c_str());
    }
  }
  if (std::ranges::any_of(results, &Generated::nonfinite)) {
    throw NonFiniteError(run.origin +
                         ": the model's scores are not finite; its weights hold NaN "
                         "or infinite values, or overflow");
  }
  return 0;
}

int run_export(const RunArguments& arguments, const ExportCommandOptions& options) {
  const LoadedRun run = load_run(arguments, options.source);
  const std::string destination =
      options.destination.empty() ? run.setup.config.run.dir + "/hf" : options.destination;
  std::string card;
  if (run.step.value > 0) {
    card = card_of_checkpoint(*run.setup.source, run.setup.config, run.origin, run.step);
  }
  const ExportResult result = export_run(*run.setup.source, *run.engine, destination, options.fp32,
                                         options.allow_nonfinite, card);
  print_out("%s: %lld tensors, %s, from %s\n", destination.c_str(),
            static_cast<long long>(result.tensors), format_bytes(result.bytes).c_str(),
            run.origin.c_str());
  log_info(next_commands(destination));
  return 0;
}

}  // namespace longshore
