// prepare, inspect data, tokenize: what a run is trained on.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/errors.h"
#include "base/log.h"
#include "base/output.h"
#include "base/own_file.h"
#include "trainer/commands/commands.h"
#include "trainer/report/data_inspection.h"
#include "trainer/run/data_files.h"
#include "trainer/run/hurried_stop.h"
#include "trainer/run/model_source.h"
#include "trainer/run/run_prepare.h"
#include "trainer/run/signal_flag.h"

namespace longshore {
namespace {

// "0:10", or one number.
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

std::string as_line(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int run_prepare(const RunArguments& arguments, bool clean) {
  const RunConfig config = load_run_config(arguments.files, arguments.overrides, {.length = false});
  const ModelSource source(config);
  const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
  SignalFlag signals(config.run.dir + "/save");
  const HurriedStop hurried(signals);
  const auto stop = [&signals] {
    if (signals.stop_requested()) {
      throw Error(static_cast<ExitCode>(signals.stop_exit_code()),
                  "stopped by a signal; the same command goes on from here");
    }
  };
  std::vector<PreparedData> in_use;  // cleaning leaves these
  const DataSection named = with_data_files(config.data);
  for (const std::vector<std::string>* files : {&named.train, &named.eval}) {
    if (files->empty()) continue;
    const PreparedData& prepared = in_use.emplace_back(preparation.run(*files, stop));
    for (size_t i = 0; i < prepared.paths.size(); ++i) {
      for (const std::string& line : lines_of(prepared.report.files.at(i))) {
        print_out("%s\n", line.c_str());
      }
      print_out("  in %s\n", prepared.paths[i].c_str());
    }
  }
  if (clean) clean_run_cache(config, 0);
  return 0;
}

int run_inspect_data(const RunArguments& arguments, const InspectDataOptions& options) {
  const auto [first, last] = parse_range(options.rows);
  const RunConfig config = load_run_config(arguments.files, arguments.overrides, {.length = false});
  const ModelSource source(config);
  const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
  const DataSection named = with_data_files(config.data);
  const std::vector<std::string>& files = options.evaluation ? named.eval : named.train;
  if (files.empty()) throw ConfigError("data.eval is empty: there is nothing to inspect");
  const std::vector<InspectedRow> rows = inspect_rows(preparation.options(files), first, last);
  if (options.json) {
    for (const InspectedRow& row : rows) print_raw(as_line(row_as_json(row)));
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

int run_tokenize(const std::string& directory) {
  const Tokenizer tokenizer = Tokenizer::load(directory);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const std::string place = "stdin:" + std::to_string(number);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const Json text = parse_json(line, {}, place);
    if (!text.is_string()) throw DataError(place + ": expected a JSON string");
    const std::vector<TokenId> ids =
        tokenizer.encode(text.get_ref<const std::string&>(), SpecialTokens::kNone);
    print_raw(as_line(Json(ids)));
  }
  return 0;
}

}  // namespace longshore
