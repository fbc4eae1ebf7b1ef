// The `ckpt` command lists, checks and prunes a run's checkpoints.
#include "base/errors.h"
#include "base/log.h"
#include "config/run_config.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/commands/command.h"

namespace longshore {
namespace {

struct CheckpointOptions {
  RunArguments run;
  bool json = false;
  int64_t keep = 2;
};

std::string checkpoint_folder(const RunArguments& run) {
  const RunConfig config = load_run_config(run.files, run.overrides, {.complete = false});
  if (config.run.dir.empty()) throw ConfigError("run.dir is not set");
  return config.run.dir + "/checkpoints";
}

void print_reports(const std::vector<CheckpointReport>& reports, bool json) {
  if (json) {
    print_json(to_json(reports));
  } else {
    print_out("%s", format_reports(reports).c_str());
  }
}

int run_checkpoint_list(const CheckpointOptions& options) {
  const std::string folder = checkpoint_folder(options.run);
  print_reports(inspect_checkpoints(folder, CheckDepth::kSizes), options.json);
  for (const std::string& path :
       options.json ? std::vector<std::string>{} : list_abandoned(folder)) {
    print_out("abandoned  %s (ckpt prune removes it)\n", path.c_str());
  }
  return 0;
}

int run_checkpoint_verify(const CheckpointOptions& options) {
  const auto reports = inspect_checkpoints(checkpoint_folder(options.run), CheckDepth::kChecksums);
  print_reports(reports, options.json);
  for (const CheckpointReport& report : reports) {
    if (!report.valid()) return static_cast<int>(ExitCode::kCheckpoint);
  }
  return 0;
}

int run_checkpoint_prune(const CheckpointOptions& options) {
  const std::string folder = checkpoint_folder(options.run);
  std::vector<std::string> removed =
      prune_checkpoints(folder, options.keep, CheckDepth::kChecksums);
  for (const std::string& path : remove_abandoned(folder)) removed.push_back(path);
  if (options.json) {
    print_json_line(Json(removed));
    return 0;
  }
  for (const std::string& path : removed) print_out("removed %s\n", path.c_str());
  return 0;
}

void add_part(CommandArguments command, CommandLine& line, const std::string& name,
              const std::string& description, int (*run)(const CheckpointOptions&)) {
  CommandArguments part = command.add_subcommand(name, description);
  CheckpointOptions& options = call_with_options(part, line, run);
  add_run_files(part, line, options.run);
  if (run == run_checkpoint_prune) {
    part.add_number("--keep", options.keep, 1, 1 << 30, "number of checkpoints to keep");
  }
  part.add_flag("--json", options.json, "print the result as JSON");
}

void add_checkpoint(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  add_part(command, line, "ls", "list the checkpoints", run_checkpoint_list);
  add_part(command, line, "verify", "check all checksums", run_checkpoint_verify);
  add_part(command, line, "prune", "delete all but the newest checkpoints, and abandoned ones",
           run_checkpoint_prune);
}

}  // namespace

extern const Command kCheckpointCommand = {.group = CommandGroup::kUse,
                                           .name = "ckpt",
                                           .description = "list, check or prune checkpoints",
                                           .add = add_checkpoint};

}  // namespace longshore
