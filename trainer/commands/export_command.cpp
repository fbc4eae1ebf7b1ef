// The `export` command writes a run's weights as a Hugging Face directory.
#include "base/child_process.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/run_config.h"
#include "config/toml_document.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/commands/command.h"
#include "trainer/model/export_run.h"
#include "trainer/report/model_card.h"
#include "trainer/report/packing_report.h"
#include "trainer/use/loaded_run.h"

namespace longshore {
namespace {

struct ExportCommandOptions {
  RunArguments run;
  std::string destination;  // empty: <run.dir>/hf
  std::string source = "auto";
  std::string format;  // empty: checkpoint.export_format
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

// Returns what is written of this run. Refuses options that have no effect on it.
ExportChoice choice_for(const ExportCommandOptions& options, const LoadedRun& run) {
  const ModelSource& source = *run.setup.source;
  ExportChoice choice = options.choice;
  if (choice.merged && !source.has_adapter()) {
    throw ConfigError("--merged: this run has no adapters (adapter.kind = \"none\")");
  }
  if (!options.format.empty() && exports_adapter(source, choice)) {
    throw ConfigError("--format has no effect on an adapter alone, which is always fp32; add " +
                      std::string("--merged for the model with the adapter in its weights"));
  }
  choice.published = asks_for_published(run.setup.config) && !choice.as_fp32;
  return choice;
}

int run_export(const ExportCommandOptions& options) {
  if (options.source == "auto") refuse_run_without_checkpoint(options.run);
  RunArguments arguments = options.run;
  if (!options.format.empty()) {
    arguments.overrides.push_back({"checkpoint.export_format", quote_toml(options.format)});
  }
  const LoadedRun run = load_run(arguments, options.source);
  const ExportChoice choice = choice_for(options, run);
  const std::string destination =
      options.destination.empty() ? run.setup.config.run.dir + "/hf" : options.destination;
  ExportTexts texts;
  if (run.step.value > 0) {
    texts = texts_of_checkpoint(*run.setup.source, run.setup.config, run.origin, run.step,
                                exports_adapter(*run.setup.source, choice));
  }
  const ExportResult result =
      export_run(*run.setup.source, *run.engine, destination, choice, texts, run.start);
  const std::string words = words_of_run(options, run.setup.config.run.dir);
  log_packing(result, run.setup.source->has_adapter(), words);
  if (options.json) {
    Json done = {{"directory", destination},
                 {"tensors", result.tensors},
                 {"bytes", result.bytes},
                 {"from", run.origin},
                 {"step", run.step.value}};
    if (!result.packed.empty()) done["packed"] = packing_json(result);
    print_json_line(done);
    return 0;
  }
  print_out("%s: %lld tensors, %s, from %s\n", destination.c_str(),
            static_cast<long long>(result.tensors), format_bytes(result.bytes).c_str(),
            run.origin.c_str());
  log_info(next_commands(destination, *run.setup.source, choice, words));
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
  const CommandOption fp32 =
      command.add_flag("--fp32", options.choice.as_fp32, "write the fp32 master weights");
  command
      .add_option("--format", options.format,
                  "of a model that was published in MXFP4 or block-scaled fp8: bf16, or published "
                  "to pack its matrices again; default: checkpoint.export_format")
      .one_of({"bf16", "published"})
      .excludes(fp32);
  command.add_flag("--allow-nonfinite", options.choice.allow_nonfinite,
                   "also write weights that are NaN or infinite");
}

}  // namespace

extern const Command kExportCommand = {.group = CommandGroup::kUse,
                                       .name = "export",
                                       .description = "write a Hugging Face model directory",
                                       .add = add_export};

}  // namespace longshore
