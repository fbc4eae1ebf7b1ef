// The `generate` command continues prompts.
#include <algorithm>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/data/run_prepare.h"
#include "trainer/use/generator.h"
#include "trainer/use/loaded_run.h"

namespace longshore {
namespace {

struct GenerateOptions {
  RunArguments run;
  std::vector<std::string> prompts;
  std::string source = "auto";
  int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: the most likely token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 1.0;        // 1: all tokens
  bool json = false;
};

// A directory that --from names may hold any model, so nothing is said of its training.
std::string describe_origin(const LoadedRun& run, const std::string& source) {
  if (run.step.value > 0) return run.origin + ", step " + std::to_string(run.step.value);
  const bool own = source == "auto" || source == "model";
  return run.origin + (own ? ", as it was before training" : "");
}

int run_generate(const GenerateOptions& options) {
  const LoadedRun run = load_run(options.run, options.source);
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
  log_info("weights of " + describe_origin(run, options.source));
  for (const Generated& result : results) {
    if (options.json) {
      const Json object = {
          {"model", run.origin}, {"step", run.step.value},          {"prompt", result.prompt},
          {"text", result.text}, {"new_tokens", result.new_tokens}, {"ended", result.ended}};
      print_json_line(object);
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

void add_generate(CommandArguments command, CommandLine& line) {
  GenerateOptions& options = call_with_options(command, line, run_generate);
  add_run_files(command, line, options.run);
  command.add_option("--prompt", options.prompts, "prompt; may be repeated").required();
  add_source(command, options.source);
  command.add_number("--max-new-tokens", options.max_new_tokens, 1, kMostTokens,
                     "maximum number of tokens to generate per prompt");
  command.add_number("--temperature", options.temperature, 0.0, 1000.0,
                     "sampling temperature; 0: greedy");
  command.add_number("--top-k", options.top_k, 0, kMostTokens,
                     "sample from this number of the most likely tokens; 0: from all");
  command.add_number("--top-p", options.top_p, 1e-6, 1.0,
                     "sample from the most likely tokens of this total probability; 1: from all");
  command.add_flag("--json", options.json, "print one JSON object per prompt and line");
}

}  // namespace

extern const Command kGenerateCommand = {.group = CommandGroup::kUse,
                                         .name = "generate",
                                         .description = "generate text from prompts",
                                         .add = add_generate};

}  // namespace longshore
