// The `prepare` command tokenises a run's data into the cache.
#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "trainer/commands/command.h"
#include "trainer/data/run_data.h"
#include "trainer/data/run_prepare.h"
#include "trainer/model/model_source.h"
#include "trainer/run/signal_flag.h"

namespace longshore {
namespace {

struct PrepareCommandOptions {
  RunArguments run;
  bool clean = false;  // remove cache files that no run has open and this one does not name
  bool json = false;
};

void print_prepared(const PreparedData& prepared, bool json) {
  for (size_t i = 0; i < prepared.paths.size(); ++i) {
    const FileReport& file = prepared.report.files.at(i);
    if (json) {
      Json object = {{"path", file.path}, {"prepared", prepared.paths[i]}};
      object.update(to_json(file));
      print_json_line(object);
      continue;
    }
    for (const std::string& line : lines_of(file)) print_out("%s\n", line.c_str());
    for (const std::string& warning : warnings_of(file)) print_out("%s\n", warning.c_str());
    print_out("  in %s\n", prepared.paths[i].c_str());
  }
}

int run_prepare(const PrepareCommandOptions& options) {
  const RunConfig config =
      load_run_config(options.run.files, options.run.overrides, {.length = false});
  const ModelSource source(config);
  const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
  SignalFlag signals(config.run.dir + "/save");
  const HurriedStop hurried(signals);
  const auto stop = [&signals] {
    if (signals.stop_requested()) {
      throw Error(static_cast<ExitCode>(signals.stop_exit_code()),
                  "stopped by a signal; the same command resumes from here");
    }
  };
  std::vector<PreparedData> in_use;  // held open until the cleanup
  const auto prepare_files = [&](const std::vector<std::string>& files) {
    if (files.empty()) return;
    print_prepared(in_use.emplace_back(preparation.run(files, stop)), options.json);
  };
  prepare_files(with_data_files(config.data).train);
  for (const auto& [name, set] : evaluation_sets(config)) {
    prepare_files(with_data_files(set.data).eval);
  }
  if (options.clean) clean_run_cache(config, 0);
  return 0;
}

void add_prepare(CommandArguments command, CommandLine& line) {
  PrepareCommandOptions& options =
      call_with_options(command, line, run_prepare, CommandRanks::kFirstOfNode);
  add_run_files(command, line, options.run);
  command.add_flag("--json", options.json, "print one JSON object per file and line");
  command.add_flag("--clean", options.clean, "remove all other prepared data that no run has open");
}

}  // namespace

extern const Command kPrepareCommand = {.group = CommandGroup::kPrepare,
                                        .name = "prepare",
                                        .description = "tokenize the data into data.cache",
                                        .add = add_prepare};

}  // namespace longshore
