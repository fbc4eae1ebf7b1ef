#include "trainer/setup/run_space.h"

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "nvme/probe/drive_probe.h"
#include "offload/plan/plan_from_config.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/data/run_prepare.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

Bytes size_of(const fs::path& path) {
  Bytes sum = 0;
  std::error_code ignored;
  for (fs::recursive_directory_iterator it(path, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    std::error_code error;
    const auto bytes = it->is_regular_file(error) ? it->file_size(error) : 0;
    if (!error) sum += static_cast<Bytes>(bytes);
  }
  return sum;
}

// Adds the checkpoints of the run, and the leftovers of a killed process, which the next start
// removes.
void add_held(const std::string& run_directory, RunSpace& space) {
  std::error_code ignored;
  for (fs::directory_iterator it(run_directory + "/checkpoints", ignored), end;
       !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename();
    const bool leftover = name.ends_with(kWritingSuffix) || name.ends_with(kRemovingSuffix);
    if (leftover) space.free += size_of(it->path());
    if (!leftover && !name.ends_with(kAbandonedSuffix)) space.held += size_of(it->path());
  }
  space.held += size_of(run_directory + "/best");
}

// Tokens take about twice the bytes of their text.
Bytes tokens_of(const RunConfig& config) {
  constexpr Bytes kTokensOfText = 2;
  Bytes text = 0;
  try {
    for (const std::string& path : with_data_files(config.data).train) {
      std::error_code error;
      const auto bytes = fs::file_size(path, error);
      if (!error) text += static_cast<Bytes>(bytes);
    }
  } catch (const Error&) {
    // The data's error is reported where the data is read.
  }
  return text * kTokensOfText;
}

bool shares(const DriveRoom& room, const std::optional<DriveRoom>& other) {
  return other && other->file_system == room.file_system;
}

}  // namespace

Bytes RunSpace::most() const {
  const Bytes saving = checkpoint * (keep + (one_more ? 1 : 0));
  const Bytes ending = checkpoint * keep + exported;
  const Bytes kept = std::max(saving, ending) + (best ? checkpoint : 0);
  return std::max(kept - held, checkpoint) + drives + cache;
}

std::optional<RunSpace> read_run_space(const RunConfig& config, const ModelSpec& model,
                                       Bytes exported, const DrivePlan* drives,
                                       int32_t ranks_per_node) {
  const std::optional<DriveRoom> room = read_drive_room(config.run.dir);
  if (!room) return std::nullopt;
  const CheckpointSection& saved = config.checkpoint;
  RunSpace space{.directory = config.run.dir, .free = room->free};
  space.checkpoint = checkpoint_bytes(model, state_options(config));
  space.exported = exported;
  space.keep = saved.keep;
  space.one_more = true;
  if (const int64_t steps = config.train.steps; steps > 0) {
    const int64_t every = saved.every_steps > 0 ? saved.every_steps : steps;
    const int64_t all = (steps + every - 1) / every;
    space.one_more = all > saved.keep;
    space.keep = std::min(saved.keep, all);
  }
  space.best = config.eval.keep_best;
  add_held(config.run.dir, space);
  const std::optional<RunStatus> status = RunDirectory::read_status(config.run.dir);
  space.done = status && status->state == RunStatus::State::kDone &&
               status->step.value >= config.train.steps;
  for (size_t i = 0; drives != nullptr && i < drives->files.size(); ++i) {
    const std::optional<DriveRoom> drive = read_drive_room(drives->tier.directories[i]);
    if (!shares(*room, drive)) continue;
    space.drives += std::max<Bytes>(0, drives->files[i] * ranks_per_node - drive->held);
  }
  // A resumed run has its prepared tokens.
  const bool begun = status.has_value();
  if (!begun && shares(*room, read_drive_room(cache_directory(config)))) {
    space.cache = tokens_of(config);
  }
  return space;
}

std::string space_refusal(const RunSpace& space) {
  const Bytes needed = space.checkpoint + space.drives;
  if (space.done || needed <= space.free) return "";
  const auto [wanted, there] = format_bytes_apart(needed, space.free);
  return "run.dir: a checkpoint " +
         (space.drives > 0 ? "and the files of offload.nvme take " : std::string("takes ")) +
         wanted + ", and the file system of " + space.directory + " has " + there + " free, " +
         format_bytes(needed - space.free) +
         " too little\n  what would help:\n    run.dir on a drive with more room" +
         (space.drives > 0 ? ", or offload.nvme on another one" : "");
}

std::string space_warning(const RunSpace& space) {
  const Bytes needed = space.most();
  if (space.done || needed <= space.free) return "";
  const auto [wanted, there] = format_bytes_apart(needed, space.free);
  std::string text = "run.dir: " + std::to_string(space.keep) +
                     (space.keep == 1 ? " checkpoint" : " checkpoints") + " of " +
                     format_bytes(space.checkpoint) + " (checkpoint.keep)";
  if (space.one_more) text += ", the one that is being written";
  if (space.best) text += ", the best one (eval.keep_best)";
  if (space.exported > 0) text += ", the export of " + format_bytes(space.exported);
  if (space.drives > 0) text += ", files of offload.nvme of " + format_bytes(space.drives);
  if (space.cache > 0) text += ", prepared data of about " + format_bytes(space.cache);
  text += " take up to " + wanted;
  if (space.held > 0) text += " more";
  return text + ", and the file system of " + space.directory + " has " + there +
         " free: the run would end when it is full; set run.dir on a drive with more room" +
         (space.keep > 1 ? ", or a smaller checkpoint.keep" : "");
}

}  // namespace longshore
