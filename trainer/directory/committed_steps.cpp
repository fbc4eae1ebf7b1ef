#include "trainer/directory/committed_steps.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>

#include "base/errors.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/directory/run_directory.h"
#include "trainer/directory/state_key.h"

namespace longshore {
namespace {

// Step 0 exists at every start and contains no training, so it does not count.
void raise(CommittedSteps& acknowledged, int64_t step, const std::string& source) {
  if (step < 1 || acknowledged.step >= step) return;
  acknowledged = {.any = true, .step = step, .source = source};
}

}  // namespace

CommittedSteps read_committed_steps(const std::string& run_directory) {
  CommittedSteps acknowledged;
  const std::string metrics = run_directory + "/metrics.jsonl";
  read_metrics(metrics, {"commit"}, [&](const MetricsLine& line) {
    if (line.step) raise(acknowledged, *line.step, metrics);
    return true;
  });
  const std::optional<RunStatus> status = RunDirectory::read_status(run_directory);
  if (status && status->committed_step) {
    raise(acknowledged, status->committed_step->value, run_directory + "/run.json");
  }
  const StateKeyFile key = read_state_key(run_directory);
  if (!acknowledged.any && key.committed) {
    acknowledged = {.any = true, .step = -1, .source = state_key_path(run_directory)};
  }
  return acknowledged;
}

CommittedSteps agree_on_committed_steps(const std::string& run_directory, World& world) {
  std::string text;
  if (world.ranks().rank == 0) {
    const CommittedSteps mine = read_committed_steps(run_directory);
    text = (mine.any ? "1 " : "0 ") + std::to_string(mine.step) + " " + mine.source;
  }
  std::istringstream words(world.exchange("the committed steps", text).front());
  CommittedSteps all;
  words >> all.any >> all.step >> std::ws;
  std::getline(words, all.source);
  return all;
}

void refuse_lost_steps(const CommittedSteps& acknowledged, int64_t have,
                       const std::string& run_directory) {
  const std::string said = acknowledged.step > 0
                               ? "step " + std::to_string(acknowledged.step) + " was committed"
                               : "steps were committed";
  const std::string newest =
      have < 1 ? "there is no other state"
               : "the newest state that can be read is after step " + std::to_string(have);
  const std::string folder = run_directory + "/checkpoints";
  const std::vector<CheckpointEntry> entries = list_checkpoints(folder);
  const std::string choice = entries.empty()
                                 ? "checkpoint.resume = \"never\" (the run starts over)"
                                 : "checkpoint.resume = \"" + entries.front().path + "\"";
  throw CheckpointError(acknowledged.source + ": says that " + said +
                        " to the drives of offload.nvme, and they do not have it; " + newest +
                        ". Nothing was changed. Check that all directories of offload.nvme are "
                        "mounted and in their order, with offload.optimizer = \"nvme\". To discard "
                        "these steps, start once with " +
                        choice);
}

}  // namespace longshore
