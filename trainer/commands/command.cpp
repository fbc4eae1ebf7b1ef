#include "trainer/commands/command.h"

#include "base/log.h"
#include "config/describe.h"
#include "config/run_arguments.h"

namespace longshore {

void add_run_files(CommandArguments command, const CommandLine& line, RunArguments& run) {
  run.overrides = line.overrides;
  run.files = {kUsualRunFile};
  command.add_option("files", run.files,
                     "run files, or the directory of a run; a later one overrides earlier ones key "
                     "by key; default: run.toml");
  command.footer(
      "\nkeys of the run file, each also --section.key=value; --help=SECTION describes them:\n" +
      help_overview());
}

void add_source(CommandArguments command, std::string& source) {
  command
      .add_option("--from", source,
                  "weights to use: auto (newest valid checkpoint, else the model), model, or the "
                  "directory of a checkpoint, a run, a model or an adapter")
      .show_default();
}

void add_any_base(CommandArguments command, RunArguments& run) {
  command.add_flag("--any-base", run.any_base,
                   "take the adapter over another model than it was trained over");
}

void print_json(const Json& value) {
  print_raw(json_text(value, 2) + "\n");
}

void print_json_line(const Json& value) {
  print_raw(json_text(value) + "\n");
}

}  // namespace longshore
