// config, ckpt, plot, version: what can be told without a model.
#include <torch/headeronly/version.h>

#include <cstdio>
#include <fstream>

#include "base/errors.h"
#include "base/json.h"
#include "config/describe.h"
#include "config/run_config.h"
#include "offload/simd_level.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/commands/commands.h"
#include "trainer/report/terminal_plot.h"
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
  std::fputs(text.c_str(), stdout);
}

// The losses of metrics.jsonl's step lines; a line that is torn or of another kind is passed over.
std::vector<double> read_losses(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw DataError(path + ": cannot be read; give a run's directory");
  std::vector<double> losses;
  std::string line;
  while (std::getline(file, line)) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || object.value("kind", "") != "step") continue;
    if (object.contains("loss") && object["loss"].is_number()) {
      losses.push_back(object["loss"].get<double>());
    }
  }
  return losses;
}

}  // namespace

int run_config_dump(const RunArguments& run, bool defaults, bool difference) {
  if (defaults) {
    std::fputs(reference_toml().c_str(), stdout);
    return 0;
  }
  const RunConfig config = load_run_config(run.files, run.overrides, {.complete = false});
  std::fputs((difference ? changed_keys(config) : to_toml(config)).c_str(), stdout);
  return 0;
}

int run_config_keys(const std::string& section) {
  std::fputs(describe_keys(section).c_str(), stdout);
  return 0;
}

int run_config_schema() {
  std::fputs(json_schema().c_str(), stdout);
  return 0;
}

int run_checkpoint_list(const RunArguments& run, bool json) {
  print_reports(inspect_checkpoints(checkpoint_folder(run), CheckDepth::kSizes), json);
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
  for (const std::string& path :
       prune_checkpoints(checkpoint_folder(run), keep, CheckDepth::kChecksums)) {
    std::printf("removed %s\n", path.c_str());
  }
  return 0;
}

int run_plot(const std::string& run_directory) {
  const std::vector<double> losses = read_losses(run_directory + "/metrics.jsonl");
  if (losses.empty()) throw DataError(run_directory + ": no step has finished yet");
  PlotOptions options;
  options.title = "loss by step";
  options.style = plot_style_of_stdout();
  std::fputs(plot_series(losses, options).c_str(), stdout);
  std::printf("loss: first %.4f, last %.4f, %zu steps\n", losses.front(), losses.back(),
              losses.size());
  return 0;
}

int run_version() {
  std::printf("longshore %s\nbuild %s\nLibTorch %s\nSIMD %s\nCUDA %s\n", LONGSHORE_VERSION,
              build_id().c_str(), TORCH_VERSION, std::string(name_of(best_simd_level())).c_str(),
              LONGSHORE_WITH_CUDA ? "compiled in" : "not compiled in");
  return 0;
}

}  // namespace longshore
