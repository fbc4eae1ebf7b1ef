#include "trainer/run/drive_state.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "model/units/router_load.h"
#include "nvme/store/state_file.h"
#include "offload/engine/tiers.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/json_fields.h"
#include "trainer/directory/drive_record.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {
namespace {

constexpr JsonLimits kNoteLimits{.max_bytes = kMaxNoteBytes, .max_values = 100};

// Exchanges problems and throws the first non-empty one, in rank order, on all ranks.
template <typename Problem>
void throw_together(World& world, const std::string& what, const std::string& mine) {
  for (const std::string& problem : world.exchange(what, mine)) {
    if (!problem.empty()) throw Problem(problem);
  }
}

// Returns the run that a manifest names, and its step if it has one.
std::string described(const Manifest& manifest) {
  return manifest.point.step == kNoStep ? "the run " + text_of(manifest.run)
                                        : "step " + std::to_string(manifest.point.step) +
                                              " of the run " + text_of(manifest.run);
}

// Returns the runs that the drives name, for the message about a damaged state_key.
std::string runs_on_drives(const TierPlan& plan, Rank rank) {
  std::string text;
  for (const std::string& directory : plan.drives.tier.directories) {
    const StateFileContent content = read_state_file(directory, rank.value);
    if (content.manifest) {
      text +=
          "; " + state_file_path(directory, rank.value) + " holds " + described(*content.manifest);
    }
  }
  return text;
}

// Returns rank 0's key on all ranks: from run.dir, or a new one that is written later. Collective.
RunKey agree_on_key(const MeasuredRun& setup, const TierPlan& plan,
                    const std::string& run_directory) {
  World& world = setup.ranks->world();
  std::string text, problem;
  if (setup.ranks->first()) {
    const StateKeyFile file = read_state_key(run_directory);
    if (file.exists && !file.key && setup.config.checkpoint.resume == "auto") {
      problem = state_key_path(run_directory) + ": is damaged; it names this run on its drives" +
                runs_on_drives(plan, setup.ranks->rank()) +
                ". If that is this run, write these 32 digits into the file; to discard the state "
                "on the drives, set checkpoint.resume to a checkpoint or to \"never\"";
    } else {
      text = text_of(file.key.value_or(new_key()));
    }
  }
  throw_together<CheckpointError>(world, "the state_key", problem);
  const auto key = parse_key(world.exchange("the key of the state files", text).front());
  LONGSHORE_CHECK(key.has_value());
  return *key;
}

// The state files of one rank, compared with this run.
struct Found {
  bool any = false;        // a manifest exists
  bool usable = false;     // equal ranks and layout: recovery can read the files
  bool cut = false;        // a file is shorter than its manifest requires
  int64_t step = kNoStep;  // step of the newest manifest
  std::string where;       // the first directory with a manifest
  std::string foreign;     // message about a file of another run
  std::string unknown;     // message about a file without a readable manifest
};

class StateFileLook {
 public:
  StateFileLook(const MeasuredRun& setup, const TierPlan& plan, const RunKey& key)
      : options_(
            nvme_options(plan.drives.tier, plan.state, plan.topology, setup.ranks->rank(), key)),
        map_(NvmeStore::make_map(
            make_layouts(setup.source->spec(), plan.topology.shard_ranks, plan.state.compute),
            options_)) {}

  // Examines all directories, so that no state is removed because another directory is empty.
  Found all(const std::vector<std::string>& directories) {
    for (size_t drive = 0; drive < directories.size(); ++drive) {
      take(directories[drive], static_cast<int>(drive));
    }
    return found_;
  }

 private:
  void take(const std::string& directory, int drive) {
    const StateFileContent content = read_state_file(directory, options_.rank);
    const std::string path = state_file_path(directory, options_.rank);
    const bool torn = content.claimed == options_.run;
    if (content.unknown && !torn && found_.unknown.empty()) {
      found_.unknown = path +
                       ": not a readable state file: no run wrote it, or its manifests are "
                       "damaged. It was not changed; give this run its own directories, or move "
                       "the file away";
    }
    if (!content.manifest) return;
    const Manifest& manifest = *content.manifest;
    if (manifest.run != options_.run && found_.foreign.empty()) {
      found_.foreign = path + ": holds " + described(manifest) + ", and this is the run " +
                       text_of(options_.run);
    }
    const bool usable = manifest.ranks == options_.ranks && manifest.rank == options_.rank &&
                        manifest.drives == options_.drives &&
                        manifest.layout_hash == map_.layout_hash();
    found_.usable = usable && (found_.usable || !found_.any);
    found_.cut = found_.cut || (usable && content.bytes < map_.file_bytes(drive));
    found_.step = std::max(found_.step, manifest.point.step);
    if (!found_.any) found_.where = directory;
    found_.any = true;
  }

  NvmeStoreOptions options_;
  StripeMap map_;
  Found found_;
};

void refuse_others(const MeasuredRun& setup, const CommittedSteps& acknowledged,
                   const Found& found) {
  World& world = setup.ranks->world();
  throw_together<CheckpointError>(world, "the state files", found.unknown);
  if (acknowledged.any) {
    // The file may belong to this run if state_key was lost.
    throw_together<CheckpointError>(
        world, "whose the state files are",
        found.foreign.empty()
            ? ""
            : found.foreign + ", which has committed steps (" + acknowledged.source +
                  "). Check the order of the directories. If the file is this run's, write its 32 "
                  "digits into state_key; else give this run its own directories, or move the "
                  "file away");
  }
  throw_together<ConfigError>(world, "whose the state files are",
                              found.foreign.empty()
                                  ? ""
                                  : "offload.nvme: " + found.foreign +
                                        "; give this run its own directories, or remove the "
                                        "*.state files there");
}

// Returns the step of the newest checkpoint, without verifying it.
int64_t newest_listed(const std::string& run_directory) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(run_directory + "/checkpoints");
  return entries.empty() ? kNoStep : entries.front().step.value;
}

// Returns the step of the newest valid checkpoint, which may replace the drives' state; 0 without
// one, because step 0 needs no checkpoint. Reads the whole checkpoint. Collective.
int64_t newest_valid(const MeasuredRun& setup, const std::string& run_directory) {
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
  for (const std::string& directory : plan.drives.tier.directories) {
    std::error_code ignored;
    std::filesystem::remove(state_file_path(directory, rank.value), ignored);
  }
}

}  // namespace

RunKey resolve_drive_state(const MeasuredRun& setup, const TierPlan& plan,
                           const std::string& run_directory) {
  World& world = setup.ranks->world();
  const bool wants_state = setup.config.checkpoint.resume == "auto";
  const CommittedSteps acknowledged = agree_on_committed_steps(run_directory, world);
  const RunKey key = agree_on_key(setup, plan, run_directory);
  const Found found = StateFileLook(setup, plan, key).all(plan.drives.tier.directories);
  refuse_others(setup, acknowledged, found);
  CommAgreement agreement(setup.ranks->groups().all);
  const Outcome all = agreement.reduce(
      {found.cut ? 1 : 0, found.usable ? 1 : 0, found.step, newest_listed(run_directory)});
  const std::string where = found.any ? found.where : plan.drives.tier.directories.front();
  const int64_t step = all.greatest[2];
  const bool usable = wants_state && all.least[1] == 1 && all.greatest[0] == 0;
  // If a checkpoint is newer, the run continued without these drives.
  const bool may_be_left = step != kNoStep && all.greatest[3] > step;
  // If the newest version is damaged, the run resumes from the previous one: one step may be lost.
  const int64_t within = usable && step >= 0 ? step + 1 : step;
  const bool lost = wants_state && acknowledged.beyond(within);
  // Usable files have this key, because refuse_others throws for manifests with another key.
  if (usable && !may_be_left && !lost) return key;
  const bool matters = wants_state && (step != kNoStep || lost);
  const int64_t saved = matters ? newest_valid(setup, run_directory) : 0;
  const int64_t have = std::max(step, saved > 0 ? saved : kNoStep);
  if (lost && acknowledged.beyond(have)) refuse_lost_steps(acknowledged, have, run_directory);
  if (usable && saved <= step) return key;
  if (wants_state && step > saved && all.greatest[0] == 1) {
    throw CheckpointError(
        where + ": the state after step " + std::to_string(step) +
        " was cut off, on this or on another rank, and no checkpoint is as new; restore the file, "
        "or set checkpoint.resume to the checkpoint to return to (\"never\" starts over)");
  }
  if (wants_state && step > saved) {
    throw CheckpointError(
        where + ": holds the state after step " + std::to_string(step) +
        ", made for other ranks, units, drives, another state format or offload.nvme_versions than "
        "the run file's, and no checkpoint is as new; run once with the previous run file and stop "
        "it (it saves a checkpoint), or set checkpoint.resume to the checkpoint to return to");
  }
  if (found.any) log_info(where + ": the state files are created again");
  remove_files(plan, setup.ranks->rank());
  if (setup.ranks->first()) write_state_key(run_directory, key, /*committed=*/false);
  return key;
}

void note_committed(const std::string& run_directory, bool committed) {
  const StateKeyFile file = read_state_key(run_directory);
  if (!file.key || file.committed == committed) return;
  write_state_key(run_directory, *file.key, committed);
}

std::string commit_note(const RunProgress& progress) {
  Json note = {{"adam_step", progress.adam_step},
               {"skipped_total", progress.skipped_total},
               {"skipped_in_row", progress.skipped_in_row},
               {"seed", progress.seed},
               {"sampler", sampler_json(progress.data)},
               {"model_fingerprint", progress.model_fingerprint}};
  if (!progress.router_corrections.empty()) {
    note["router_corrections"] = hash_text(hash64(corrections_text(progress.router_corrections)));
  }
  return note.dump();
}

RunProgress read_commit_note(const std::string& note, Step step, const std::string& run_directory) {
  const std::string where = "the commit of the state files";
  Json object;
  try {
    object = parse_json(note, kNoteLimits, where);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
  const JsonFields fields(object, where);
  RunProgress progress;
  progress.step = step;
  if (step.value < 0 || step.value > kMostSteps) fields.fail("a step out of range");
  progress.adam_step = fields.count("adam_step", kMostSteps);
  progress.skipped_total = fields.count("skipped_total", kMostSteps);
  progress.skipped_in_row = fields.count("skipped_in_row", kMostSteps);
  read_progress(fields, progress);
  if (fields.has("router_corrections")) {
    progress.router_corrections =
        kept_corrections(run_directory, step, fields.hash("router_corrections"));
  }
  return progress;
}

// ---- RouterState ----

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "/router_corrections";
constexpr Bytes kMostBytes = 64 * kMiB;
// Drives hold the last two commits, and one more may be on its way.
constexpr int64_t kKeptSteps = 3;

std::string path_of(const std::string& run_directory, Step step) {
  return run_directory + std::string(kFolder) + "/step-" + std::to_string(step.value);
}

// Returns the step of a file of the folder; nullopt for another file.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + std::min(kPrefix.size(), name.size()),
                                            name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return name.starts_with(kPrefix) && whole ? std::optional(step) : std::nullopt;
}

}  // namespace

std::vector<float> initial_corrections(const ModelSource& source) {
  const MoeSpec& moe = source.arch().moe;
  if (moe.correction_rate == 0.0) return {};
  std::vector<float> corrections(static_cast<size_t>(source.arch().layer_count() * moe.experts));
  for (const auto& [name, place] : correction_places(source.arch(), source.whole())) {
    source.read_initial(name, 0,
                        std::span(corrections)
                            .subspan(static_cast<size_t>(place), static_cast<size_t>(moe.experts)));
  }
  return corrections;
}

void check_corrections(const RunProgress& saved, const ModelSource& source,
                       const std::string& path) {
  const ArchSpec& arch = source.arch();
  if (saved.router_corrections.empty()) return;
  if (arch.moe.correction &&
      std::ssize(saved.router_corrections) == arch.layer_count() * arch.moe.experts) {
    return;
  }
  throw CheckpointError(path + ": has corrections of routers that are not of this model");
}

void keep_corrections(const std::string& run_directory, const RunProgress& progress) {
  if (progress.router_corrections.empty()) return;
  const std::string folder = run_directory + std::string(kFolder);
  make_own_directory(folder);
  write_file_durably(path_of(run_directory, progress.step),
                     corrections_text(progress.router_corrections));
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::optional<int64_t> step = step_of(entry.path().filename().string());
    if (step && *step + kKeptSteps <= progress.step.value) remove_tree(entry.path().string());
  }
}

std::vector<float> kept_corrections(const std::string& run_directory, Step step, uint64_t hash) {
  const std::string path = path_of(run_directory, step);
  std::string text;
  try {
    text = read_own_file(path, kMostBytes);
  } catch (const IoError& error) {
    throw CheckpointError(path + ": cannot be read (" + error.what() +
                          "), and the state on the drives needs it; set checkpoint.resume to a "
                          "checkpoint");
  }
  if (hash64(text) != hash) {
    throw CheckpointError(path +
                          ": does not have the checksum that the state on the drives names; set "
                          "checkpoint.resume to a checkpoint");
  }
  return read_corrections(text, path);
}

}  // namespace longshore
