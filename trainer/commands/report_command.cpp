// The `report` command writes an HTML page about runs, or draws their loss curves in the terminal.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/run_arguments.h"
#include "config/run_config.h"
#include "trainer/commands/command.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/terminal_plot.h"
#include "trainer/report/run_report.h"

namespace longshore {
namespace {

struct ReportCommandOptions {
  std::vector<std::string> directories;  // active or finished runs
  std::string html;                      // output page; empty: report.html in the first run
  bool terminal = false;                 // draw in the terminal and write no page
};

// Returns the losses of metrics.jsonl's step lines. A null loss becomes NaN.
std::vector<double> read_losses(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    throw DataError(path + ": cannot be read; give a run's directory");
  }
  std::vector<double> losses;
  read_metrics(path, {"step"}, [&losses](const MetricsLine& line) {
    losses.push_back(line.number("loss").value_or(std::numeric_limits<double>::quiet_NaN()));
    return true;
  });
  return losses;
}

// Returns the terminal's width, limited to kColumns.
int columns_of_stdout() {
  constexpr int kColumns = 72;
  const int columns = terminal_size(STDOUT_FILENO).columns;
  return columns > 0 ? std::min(columns, kColumns) : kColumns;
}

// Returns "3 steps without a finite loss: 5 to 7", or an empty string if all losses are finite.
std::string nonfinite_text(const std::vector<double>& losses) {
  size_t count = 0, first = 0, last = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (std::isfinite(losses[i])) continue;
    if (count++ == 0) first = i + 1;
    last = i + 1;
  }
  if (count == 0) return "";
  return std::to_string(count) + " steps without a finite loss: " + std::to_string(first) +
         (last > first ? " to " + std::to_string(last) : "") + "\n";
}

// Draws the loss curve of one run.
void draw_losses(const std::string& directory, const std::string& title) {
  const std::vector<double> losses = read_losses(directory + "/metrics.jsonl");
  if (losses.empty()) throw DataError(directory + ": no step has finished yet");
  PlotOptions options;
  options.title = title;
  options.style = plot_style_of_stdout();
  options.columns = columns_of_stdout();
  print_raw(plot_series(losses, options));
  const auto finite = [](double loss) { return std::isfinite(loss); };
  const auto first = std::ranges::find_if(losses, finite);
  if (first != losses.end()) {
    const auto last = std::find_if(losses.rbegin(), losses.rend(), finite);
    print_out("loss: first %s, last %s, %zu steps\n", format_loss(*first).c_str(),
              format_loss(*last).c_str(), losses.size());
  }
  print_out("%s", nonfinite_text(losses).c_str());
}

// A run file means the run.dir that it names.
std::string run_directory_of(const std::string& given) {
  if (!std::filesystem::is_regular_file(given) && given != kUsualRunFile) return given;
  return load_run_config({given}, {}, {.complete = false}).run.dir;
}

int run_report(const ReportCommandOptions& given) {
  ReportCommandOptions options = given;
  for (std::string& directory : options.directories) directory = run_directory_of(directory);
  if (options.terminal) {
    const bool one = options.directories.size() == 1;
    for (const std::string& directory : options.directories) {
      draw_losses(directory, "loss by step" + (one ? "" : ": " + printable(directory)));
    }
    return 0;
  }
  std::vector<RunRecord> runs;
  for (const std::string& directory : options.directories) {
    runs.push_back(read_run_record(directory));
  }
  const bool own = options.html.empty();
  const std::string path = own ? options.directories.front() + "/report.html" : options.html;
  if (own) {
    // In a run's directory a link is replaced; nothing is written through it.
    write_file_durably(path, report_page(runs));
  } else {
    write_output_file(path, report_page(runs));
  }
  print_out("%s\n", path.c_str());
  return 0;
}

void add_report(CommandArguments command, CommandLine& line) {
  ReportCommandOptions& options = call_with_options(command, line, run_report);
  options.directories = {kUsualRunFile};
  command.add_option("runs", options.directories,
                     "run directories (run.dir), or run files that name them; default: run.toml");
  const CommandOption to = command.add_option(
      "--to", options.html, "HTML file to write; default: report.html in the first run directory");
  command
      .add_flag("--terminal", options.terminal,
                "draw the loss curve of each run in the terminal instead")
      .excludes(to);
}

}  // namespace

extern const Command kReportCommand = {
    .group = CommandGroup::kUse,
    .name = "report",
    .description = "write an HTML report of runs, or draw their loss curves in the terminal",
    .add = add_report};

}  // namespace longshore
