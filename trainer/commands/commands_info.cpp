// config, ckpt, plot, version: what can be told without a model.
#include <sys/ioctl.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "base/errors.h"
#include "base/json.h"
#include "base/output.h"
#include "config/describe.h"
#include "config/run_config.h"
#include "offload/simd_level.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/commands/commands.h"
#include "trainer/report/terminal_plot.h"
#include "trainer/run/metrics_reader.h"
#include "trainer/run/run_environment.h"

namespace longshore {
namespace {

std::string checkpoint_folder(const RunArguments& run) {
  const RunConfig config = load_run_config(run.files, run.overrides, {.complete = false});
  if (config.run.dir.empty()) throw ConfigError("run.dir is not set");
  return config.run.dir + "/checkpoints";
}

void print_reports(const std::vector<CheckpointReport>& reports, bool json) {
  const std::string text = json ? to_json(reports).dump(2) + "\n" : format_reports(reports);
  print_out("%s", text.c_str());
}

// The losses of metrics.jsonl's step lines; NaN where a line has none (JSON has no such number).
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

// The terminal's, or what fits most of them.
int columns_of_stdout() {
  constexpr int kColumns = 72;
  struct winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumns;
  return std::min<int>(size.ws_col, kColumns);
}

// "3 steps without a finite loss: 5 to 7"; empty where there are none.
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

}  // namespace

int run_config_dump(const RunArguments& run, bool defaults, bool difference) {
  if (defaults) {
    print_out("%s", reference_toml().c_str());
    return 0;
  }
  const RunConfig config = load_run_config(run.files, run.overrides, {.complete = false});
  print_out("%s", (difference ? changed_keys(config) : to_toml(config)).c_str());
  return 0;
}

int run_config_keys(const std::string& section, bool page) {
  print_out("%s", (page ? run_file_page() : describe_keys(section)).c_str());
  return 0;
}

int run_config_schema() {
  print_out("%s", json_schema().c_str());
  return 0;
}

int run_checkpoint_list(const RunArguments& run, bool json) {
  const std::string folder = checkpoint_folder(run);
  print_reports(inspect_checkpoints(folder, CheckDepth::kSizes), json);
  for (const std::string& path : json ? std::vector<std::string>{} : list_abandoned(folder)) {
    print_out("abandoned  %s (ckpt prune removes it)\n", path.c_str());
  }
  return 0;
}

int run_checkpoint_verify(const RunArguments& run, bool json) {
  const auto reports = inspect_checkpoints(checkpoint_folder(run), CheckDepth::kChecksums);
  print_reports(reports, json);
  for (const CheckpointReport& report : reports) {
    if (!report.valid()) return static_cast<int>(ExitCode::kCheckpoint);
  }
  return 0;
}

int run_checkpoint_prune(const RunArguments& run, int64_t keep) {
  const std::string folder = checkpoint_folder(run);
  std::vector<std::string> removed = prune_checkpoints(folder, keep, CheckDepth::kChecksums);
  for (const std::string& path : remove_abandoned(folder)) removed.push_back(path);
  for (const std::string& path : removed) print_out("removed %s\n", path.c_str());
  return 0;
}

int run_plot(const std::string& run_directory) {
  const std::vector<double> losses = read_losses(run_directory + "/metrics.jsonl");
  if (losses.empty()) throw DataError(run_directory + ": no step has finished yet");
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

int run_version() {
  print_out("longshore %s\nbuild %s\nLibTorch %s\nSIMD %s\nCUDA %s\n", LONGSHORE_VERSION,
            build_id().c_str(), TORCH_VERSION, std::string(name_of(best_simd_level())).c_str(),
            LONGSHORE_WITH_CUDA ? "compiled in" : "not compiled in");
  return 0;
}

}  // namespace longshore
