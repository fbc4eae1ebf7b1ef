// The `verify` command checks a model before it is trained.
#include "base/errors.h"
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/verify/verify.h"

namespace longshore {
namespace {

struct VerifyCommandOptions : VerifyOptions {
  bool json = false;
};

// Returns ExitCode::kData if a check failed.
int run_verify(const VerifyCommandOptions& options) {
  const Findings findings = verify_model(options);
  if (options.json) {
    print_json(to_json(findings, options.model));
  } else {
    print_out("%s", format_findings(findings, options.model).c_str());
  }
  return static_cast<int>(findings.failed() ? ExitCode::kData : ExitCode::kDone);
}

void add_verify(CommandArguments command, CommandLine& line) {
  VerifyCommandOptions& options = call_with_options(command, line, run_verify);
  command.add_option("model", options.model, "model directory, or hub id in the local cache")
      .required();
  command.add_option("--against", options.against, "base model to compare with");
  command.add_option("--python", options.python,
                     "Python with transformers, to compare the first layers with");
  command.add_number("--layers", options.layers, 0, kMostTokens,
                     "number of first layers to run; 0: all");
  command.add_number("--tokens", options.tokens, 1, int64_t{1} << 16,
                     "tokens of the longest text to run");
  command.add_flag("--json", options.json, "print the result as one JSON object");
}

}  // namespace

extern const Command kVerifyCommand = {
    .group = CommandGroup::kPrepare,
    .name = "verify",
    .description = "check a model before training: tensors, tokenizer, template, numbers",
    .add = add_verify};

}  // namespace longshore
