// The `inspect data` command shows training rows and their statistics.
#include <unistd.h>

#include <string>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/data/data_files.h"
#include "trainer/data/run_prepare.h"
#include "trainer/model/model_source.h"
#include "trainer/report/data_inspection.h"

namespace longshore {
namespace {

struct InspectDataOptions {
  RunArguments run;
  std::string rows = "0:3";  // row numbers in the files, before packing
  std::string html;          // output page; empty: none
  bool json = false;         // rows only, one object per line
  bool evaluation = false;   // data.eval instead of data.train
};

// Parses "0:10", or a single number.
std::pair<int64_t, int64_t> parse_range(const std::string& text) {
  const auto wrong = [&text] {
    return ConfigError("--rows=" + text + ": expected a range of rows such as 0:10");
  };
  const size_t colon = text.find(':');
  const std::string first = text.substr(0, colon);
  const std::string last = colon == std::string::npos ? "" : text.substr(colon + 1);
  for (const std::string& part : {first, last}) {
    if (part.find_first_not_of("0123456789") != std::string::npos || part.size() > 15) {
      throw wrong();
    }
  }
  if (first.empty() || (last.empty() && colon != std::string::npos)) throw wrong();
  const int64_t begin = std::stoll(first);
  const int64_t end = last.empty() ? begin + 1 : std::stoll(last);
  if (end <= begin) throw wrong();
  return {begin, end};
}

bool stdout_takes_colour() {
  return ::isatty(STDOUT_FILENO) != 0 && log_uses_colour();
}

int run_inspect_data(const InspectDataOptions& options) {
  const auto [first, last] = parse_range(options.rows);
  const RunConfig config =
      load_run_config(options.run.files, options.run.overrides, {.length = false});
  const ModelSource source(config);
  const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
  const DataSection named = with_data_files(config.data);
  const std::vector<std::string>& files = options.evaluation ? named.eval : named.train;
  if (files.empty()) throw ConfigError("data.eval is empty: there is nothing to inspect");
  const std::vector<InspectedRow> rows = inspect_rows(preparation.options(files), first, last);
  if (options.json) {
    for (const InspectedRow& row : rows) print_raw(json_line(row_as_json(row)));
    return 0;
  }
  const DataStatistics statistics = measure_data(config, preparation, files);
  if (!options.html.empty()) {
    write_output_file(options.html, inspection_page(statistics, rows));
    print_out("%s\n", options.html.c_str());
    return 0;
  }
  for (const InspectedRow& row : rows) {
    print_raw(describe_row(row, stdout_takes_colour()) + "\n");
  }
  print_out("%s", describe_statistics(statistics).c_str());
  return 0;
}

void add_inspect(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  CommandArguments data =
      command.add_subcommand("data", "show rows with trained tokens, counts, lengths, packing");
  InspectDataOptions& options = call_with_options(data, line, run_inspect_data);
  add_run_files(data, line, options.run);
  data.add_option("--rows", options.rows, "range of rows, such as 0:10");
  data.add_option("--html", options.html, "write an HTML page to this file");
  data.add_flag("--json", options.json, "print one JSON object per row and line");
  data.add_flag("--eval", options.evaluation, "show data.eval instead of data.train");
}

}  // namespace

extern const Command kInspectCommand = {.group = CommandGroup::kPrepare,
                                        .name = "inspect",
                                        .description = "show the data that a run trains on",
                                        .add = add_inspect};

}  // namespace longshore
