#include "trainer/run/drive_state.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "nvme/store/state_files.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/run/resume_point.h"

namespace longshore {
namespace {

constexpr const char* kKeyName = "/state_key";
constexpr JsonLimits kNoteLimits{.max_bytes = kMaxNoteBytes, .max_values = 100};

std::string text_of(const RunKey& key) {
  return hash_text(key.bits[0]) + hash_text(key.bits[1]) + "\n";
}

std::optional<RunKey> parse_key(const std::string& text) {
  if (text.size() != 33) return std::nullopt;
  const auto first = parse_hash(std::string_view(text).substr(0, 16));
  const auto second = parse_hash(std::string_view(text).substr(16, 16));
  if (!first || !second) return std::nullopt;
  return RunKey{{*first, *second}};
}

RunKey new_key() {
  std::random_device random;
  const auto word = [&random] { return (uint64_t{random()} << 32) | random(); };
  return {{word(), word()}};
}

// Rank 0's: read from the run's directory, or made there. All ranks get it.
RunKey agree_on_key(const RunSetup& setup, const std::string& run_directory) {
  World& world = setup.ranks->world();
  std::string text;
  if (setup.ranks->first()) {
    const std::string path = run_directory + kKeyName;
    if (std::filesystem::exists(path)) text = read_whole_file(path, 64);
    if (!parse_key(text)) {
      text = text_of(new_key());
      write_file_durably(path, text);
    }
  }
  const auto key = parse_key(world.exchange("the key of the state files", text).front());
  LONGSHORE_CHECK(key.has_value());
  return *key;
}

// What one rank's files are to this run.
struct Found {
  bool any = false;        // a manifest is there
  std::string foreign;     // the first directory with another run's
  bool usable = false;     // of the same ranks and layout: recovery can read it
  int64_t step = kNoStep;  // of the newest manifest
};

// In every directory: what one of them holds is not removed because another one is empty.
Found look_at(const RunSetup& setup, const TierPlan& plan, const RunKey& key) {
  const Rank rank = setup.ranks->rank();
  const NvmeStoreOptions options = nvme_options(plan.nvme, plan.state, plan.topology, rank, key);
  const std::vector<FlatLayout> layouts =
      make_layouts(setup.source->spec(), plan.topology.shard_ranks);
  const uint64_t layout_hash = NvmeStore::make_map(layouts, options).layout_hash();
  Found found;
  for (const std::string& directory : plan.nvme.directories) {
    const std::optional<Manifest> manifest = peek_state_file({directory}, rank.value);
    if (!manifest) continue;
    const bool usable = manifest->ranks == options.ranks && manifest->rank == options.rank &&
                        manifest->drives == options.drives && manifest->layout_hash == layout_hash;
    found.usable = usable && (found.usable || !found.any);
    if (manifest->run != key && found.foreign.empty()) found.foreign = directory;
    found.step = std::max(found.step, manifest->point.step);
    found.any = true;
  }
  return found;
}

// Of the newest checkpoint, valid or not; cheap.
int64_t newest_listed(const std::string& run_directory) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(run_directory + "/checkpoints");
  return entries.empty() ? kNoStep : entries.front().step.value;
}

// Of the newest that is valid, for which the drives' state may be given up; step 0 any start has.
// Reads all of it. Collective.
int64_t newest_valid(const RunSetup& setup, const std::string& run_directory) {
  try {
    const FoundCheckpoint found =
        find_checkpoint(run_directory + "/checkpoints", "auto", setup.ranks->world());
    return found.checkpoint ? found.checkpoint->manifest().progress.step.value : 0;
  } catch (const CheckpointError& error) {
    log_warning(error.what());  // on all ranks: none is valid
    return 0;
  }
}

void remove_files(const TierPlan& plan, Rank rank) {
  for (const std::string& directory : plan.nvme.directories) {
    std::error_code ignored;
    std::filesystem::remove(state_file_path(directory, rank.value), ignored);
  }
}

}  // namespace

Outcome CommAgreement::reduce(const Ballot& mine) {
  Outcome outcome{mine, mine};
  if (all_ == nullptr) return outcome;
  std::vector<Ballot> ballots(static_cast<size_t>(all_->size()));
  ballots[static_cast<size_t>(all_->index())] = mine;
  all_->all_gather({std::as_writable_bytes(std::span(ballots))}, {"the commit", std::nullopt})
      .wait();
  for (const Ballot& ballot : ballots) {
    for (size_t i = 0; i < ballot.size(); ++i) {
      outcome.least[i] = std::min(outcome.least[i], ballot[i]);
      outcome.greatest[i] = std::max(outcome.greatest[i], ballot[i]);
    }
  }
  return outcome;
}

RunKey settle_drive_state(const RunSetup& setup, const TierPlan& plan,
                          const std::string& run_directory) {
  const RunKey key = agree_on_key(setup, run_directory);
  const Found found = look_at(setup, plan, key);
  CommAgreement agreement(setup.ranks->groups().all);
  const Outcome all = agreement.reduce({found.foreign.empty() ? 1 : 0, found.usable ? 1 : 0,
                                        found.step, newest_listed(run_directory)});
  const std::string where = found.foreign.empty() ? plan.nvme.directories.front() : found.foreign;
  if (all.least[0] == 0) {
    throw ConfigError("offload.nvme: " + where +
                      " holds the state of another run; give this run directories of its own, or "
                      "remove the *.state files there");
  }
  const bool wants_state = setup.config.checkpoint.resume == "auto";
  const int64_t step = all.greatest[2];
  const bool usable = wants_state && all.least[1] == 1;
  // A newer checkpoint: since then the run went on without these drives.
  const bool may_be_left = step != kNoStep && all.greatest[3] > step;
  if (usable && !may_be_left) return key;
  const int64_t saved = wants_state && step != kNoStep ? newest_valid(setup, run_directory) : 0;
  if (usable && saved <= step) return key;
  if (wants_state && step > saved) {
    throw CheckpointError(
        where + ": holds the state after step " + std::to_string(step) +
        ", made for other ranks, units, drives, another state format or offload.nvme_versions than "
        "the run file's, and no checkpoint is as new; run once as it was and stop it (it saves a "
        "checkpoint), or name the checkpoint to go back to as checkpoint.resume");
  }
  if (found.any) log_info(where + ": the state files are made anew");
  remove_files(plan, setup.ranks->rank());
  return key;
}

std::string commit_note(const RunProgress& progress) {
  const Json note = {{"adam_step", progress.adam_step},
                     {"skipped_total", progress.skipped_total},
                     {"skipped_in_row", progress.skipped_in_row},
                     {"seed", progress.seed},
                     {"sampler", progress.sampler},
                     {"model_fingerprint", progress.model_fingerprint}};
  return note.dump();
}

RunProgress read_commit_note(const std::string& note, Step step) {
  RunProgress progress;
  progress.step = step;
  try {
    const Json object = parse_json(note, kNoteLimits, "the commit of the state files");
    progress.adam_step = object.at("adam_step").get<int64_t>();
    progress.skipped_total = object.at("skipped_total").get<int64_t>();
    progress.skipped_in_row = object.at("skipped_in_row").get<int64_t>();
    progress.seed = object.at("seed").get<uint64_t>();
    progress.sampler = object.at("sampler");
    progress.model_fingerprint = object.at("model_fingerprint").get<std::string>();
  } catch (const Json::exception& error) {
    throw CheckpointError("the commit of the state files: " + std::string(error.what()));
  }
  return progress;
}

}  // namespace longshore
