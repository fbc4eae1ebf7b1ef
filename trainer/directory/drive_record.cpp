#include "trainer/directory/drive_record.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

constexpr size_t kDigits = 32;
constexpr std::string_view kCommitted = "\ncommitted\n";
constexpr Bytes kMaxBytes = 4 * kKiB;

// Step 0 exists at every start and contains no training, so it does not count.
void raise(CommittedSteps& acknowledged, int64_t step, const std::string& source) {
  if (step < 1 || acknowledged.step >= step) return;
  acknowledged = {.any = true, .step = step, .source = source};
}

}  // namespace

std::string state_key_path(const std::string& run_directory) {
  return run_directory + "/state_key";
}

std::string text_of(const RunKey& key) {
  return hash_text(key.bits[0]) + hash_text(key.bits[1]);
}

std::optional<RunKey> parse_key(std::string_view text) {
  if (text.size() != kDigits) return std::nullopt;
  const auto first = parse_hash(text.substr(0, kDigits / 2));
  const auto second = parse_hash(text.substr(kDigits / 2));
  if (!first || !second) return std::nullopt;
  return RunKey{{*first, *second}};
}

StateKeyFile read_state_key(const std::string& run_directory) {
  StateKeyFile file;
  const std::string path = state_key_path(run_directory);
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return file;
  file.exists = true;
  std::string text;
  try {
    text = read_own_file(path, kMaxBytes);
  } catch (const DataError&) {
    return file;  // the file is too long for a key
  }
  const std::string_view rest = std::string_view(text).substr(std::min(kDigits, text.size()));
  file.committed = rest == kCommitted;
  if (rest == "\n" || rest == kCommitted) file.key = parse_key(text.substr(0, kDigits));
  return file;
}

void write_state_key(const std::string& run_directory, const RunKey& key, bool committed) {
  write_file_durably(state_key_path(run_directory),
                     text_of(key) + (committed ? std::string(kCommitted) : "\n"));
}

RunKey new_key() {
  return {{random_word(), random_word()}};
}

// ---- CommittedSteps ----

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
