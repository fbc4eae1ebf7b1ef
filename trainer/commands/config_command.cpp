// The `config` command prints the run file's keys, the JSON schemas of input and output files, and
// scripts that complete commands and keys in a shell.
#include "base/log.h"
#include "config/describe.h"
#include "config/run_config.h"
#include "trainer/commands/command.h"
#include "trainer/commands/shell_completion.h"
#include "trainer/metrics/metric_table.h"
#include "trainer/model/adapter_files.h"

namespace longshore {
namespace {

struct DumpOptions {
  RunArguments run;
  bool defaults = false, difference = false;
};

int run_config_dump(const DumpOptions& options) {
  if (options.defaults) {
    print_out("%s", reference_toml().c_str());
    return 0;
  }
  RunConfig config = load_run_config(options.run.files, options.run.overrides, {.complete = false});
  if (!options.difference) take_adapter_kind(config);  // a complete file says which kind it is
  print_out("%s", (options.difference ? changed_keys(config) : to_toml(config)).c_str());
  return 0;
}

struct KeysOptions {
  std::string section;  // empty: all sections
  bool page = false;    // in the format of docs/run_file.md
};

int run_config_keys(const KeysOptions& options) {
  print_out("%s", (options.page ? run_file_page() : describe_keys(options.section)).c_str());
  return 0;
}

struct SchemaOptions {
  bool metrics = false;
};

int run_config_schema(const SchemaOptions& options) {
  print_raw(options.metrics ? metrics_schema() : json_schema());
  return 0;
}

struct CompletionOptions {
  std::string shell;
};

int run_config_completion(const CompletionOptions& options) {
  print_raw(completion_script(options.shell, program_help()));
  return 0;
}

void add_config(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  CommandArguments dump = command.add_subcommand("dump", "print the resolved run file");
  DumpOptions& dumped = call_with_options(dump, line, run_config_dump);
  dumped.run.overrides = line.overrides;
  dump.add_option("files", dumped.run.files, "run files");
  dump.add_flag("--defaults", dumped.defaults, "print all keys with their defaults");
  dump.add_flag("--diff", dumped.difference, "print only keys that differ from their defaults");
  CommandArguments keys =
      command.add_subcommand("keys", "print type, default, bounds and meaning of each key");
  KeysOptions& described = call_with_options(keys, line, run_config_keys);
  keys.add_option("section", described.section, "print only this section");
  keys.add_flag("--page", described.page, "print all keys as a Markdown page");
  CommandArguments schema =
      command.add_subcommand("schema", "print the JSON Schema of run files, for editors");
  SchemaOptions& schemas = call_with_options(schema, line, run_config_schema);
  schema.add_flag("--metrics", schemas.metrics,
                  "print the schema of the lines of metrics.jsonl instead");
  CommandArguments completion = command.add_subcommand(
      "completion", "print a script that completes commands and keys in bash, zsh or fish");
  CompletionOptions& completed = call_with_options(completion, line, run_config_completion);
  completion.add_option("shell", completed.shell, "shell: bash, zsh or fish")
      .required()
      .one_of({"bash", "zsh", "fish"});
}

}  // namespace

extern const Command kConfigCommand = {
    .group = CommandGroup::kLook,
    .name = "config",
    .description = "print run files, keys, schemas and shell completion",
    .add = add_config};

}  // namespace longshore
