// The `plot` command draws a run's loss curve in the terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/errors.h"
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/report/terminal_plot.h"

namespace longshore {
namespace {

struct PlotCommandOptions {
  std::string directory;
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
  struct winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumns;
  return std::min<int>(size.ws_col, kColumns);
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

int run_plot(const PlotCommandOptions& command) {
  const std::vector<double> losses = read_losses(command.directory + "/metrics.jsonl");
  if (losses.empty()) throw DataError(command.directory + ": no step has finished yet");
  PlotOptions options;
  options.title = "loss by step";
  options.style = plot_style_of_stdout();
  options.columns = columns_of_stdout();
  print_raw(plot_series(losses, options));
  const auto finite = [](double loss) { return std::isfinite(loss); };
  const auto first = std::ranges::find_if(losses, finite);
  if (first != losses.end()) {
    const auto last = std::find_if(losses.rbegin(), losses.rend(), finite);
    print_out("loss: first %.4f, last %.4f, %zu steps\n", *first, *last, losses.size());
  }
  print_out("%s", nonfinite_text(losses).c_str());
  return 0;
}

void add_plot(CommandArguments command, CommandLine& line) {
  PlotCommandOptions& options = call_with_options(command, line, run_plot);
  command.add_option("directory", options.directory, "run directory (run.dir)").required();
}

}  // namespace

extern const Command kPlotCommand = {.group = CommandGroup::kUse,
                                     .name = "plot",
                                     .description = "draw the loss curve of a run in the terminal",
                                     .add = add_plot};

}  // namespace longshore
