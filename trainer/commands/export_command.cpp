// The `export` command writes a run's weights as a Hugging Face directory.
#include "base/child_process.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/run_config.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/commands/command.h"
#include "trainer/model/export_run.h"
#include "trainer/report/model_card.h"
#include "trainer/use/loaded_run.h"

namespace longshore {
namespace {

struct ExportCommandOptions {
  RunArguments run;
  std::string destination;  // empty: <run.dir>/hf
  std::string source = "auto";
  ExportChoice choice;
  bool json = false;
};

// Refuses to export the untrained model if a run was meant, whose run.dir may be misspelt.
void refuse_run_without_checkpoint(const RunArguments& run) {
  const RunConfig config = load_run_config(run.files, run.overrides, {.complete = false});
  if (!list_checkpoints(config.run.dir + "/checkpoints").empty()) return;
  throw CheckpointError("run.dir = \"" + config.run.dir +
                        "\" has no checkpoint; --from model exports the model as it was before "
                        "training");
}

// Returns the quoted words that name the run and its weights in a command line: the run's
// directory, where it holds a configuration, since that one has the keys given when the run
// started.
std::string words_of_run(const ExportCommandOptions& options, const std::string& run_directory) {
  const bool recorded = run_file_at(run_directory) != run_directory;
  std::string words =
      recorded ? shell_quoted(run_directory) : joined(options.run.files, " ", shell_quoted);
  if (options.source != "auto") words += " --from " + shell_quoted(options.source);
  return words;
}

int run_export(const ExportCommandOptions& options) {
  if (options.source == "auto") refuse_run_without_checkpoint(options.run);
  const LoadedRun run = load_run(options.run, options.source);
  if (options.choice.merged && !run.setup.source->has_adapter()) {
    throw ConfigError("--merged: this run has no adapters (adapter.kind = \"none\")");
  }
  const std::string destination =
      options.destination.empty() ? run.setup.config.run.dir + "/hf" : options.destination;
  ExportTexts texts;
  if (run.step.value > 0) {
    texts = texts_of_checkpoint(*run.setup.source, run.setup.config, run.origin, run.step,
                                exports_adapter(*run.setup.source, options.choice));
  }
  const ExportResult result =
      export_run(*run.setup.source, *run.engine, destination, options.choice, texts, run.start);
  if (options.json) {
    const Json done = {{"directory", destination},
                       {"tensors", result.tensors},
                       {"bytes", result.bytes},
                       {"from", run.origin},
                       {"step", run.step.value}};
    print_json_line(done);
    return 0;
  }
  print_out("%s: %lld tensors, %s, from %s\n", destination.c_str(),
            static_cast<long long>(result.tensors), format_bytes(result.bytes).c_str(),
            run.origin.c_str());
  log_info(next_commands(destination, *run.setup.source, options.choice,
                         words_of_run(options, run.setup.config.run.dir)));
  return 0;
}

void add_export(CommandArguments command, CommandLine& line) {
  ExportCommandOptions& options = call_with_options(command, line, run_export);
  add_run_files(command, line, options.run);
  add_any_base(command, options.run);
  command.add_option("--to", options.destination, "output directory; default: <run.dir>/hf");
  add_source(command, options.source);
  command.add_flag("--json", options.json, "print the result as one JSON object");
  command.add_flag("--merged", options.choice.merged,
                   "with adapters: write the model with their products added to its weights");
  command.add_flag("--fp32", options.choice.as_fp32, "write the fp32 master weights");
  command.add_flag("--allow-nonfinite", options.choice.allow_nonfinite,
                   "also write weights that are NaN or infinite");
}

}  // namespace

extern const Command kExportCommand = {.group = CommandGroup::kUse,
                                       .name = "export",
                                       .description = "write a Hugging Face model directory",
                                       .add = add_export};

}  // namespace longshore
