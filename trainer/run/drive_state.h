// Decides whether a run resumes from the state on the drives of offload.nvme. All ranks
// decide together before the engine opens the state files. Free functions; main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nvme/commit/manifest.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/run_progress.h"
#include "trainer/model/model_source.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

// Returns the key under which the engine opens the run's state files. First removes files that the
// run cannot resume from: checkpoint.resume excludes them, or they were made for other ranks,
// units, formats or versions and are no newer than the newest valid checkpoint. Changes no file of
// another run, and none if it throws: CheckpointError if committed steps on the drives or recorded
// in run.dir would be lost, or a file is no state file; ConfigError if a file is another run's.
// Collective.
RunKey resolve_drive_state(const MeasuredRun& setup, const TierPlan& plan,
                           const std::string& run_directory);

// Records in the file run.dir/state_key (the run's key on its drives), if it exists, whether steps
// were committed. Rank 0 calls it.
void note_committed(const std::string& run_directory, bool committed);

// Returns the payload of a commit: the run's progress.
std::string commit_note(const RunProgress& progress);
// Reads the payload of the commit of `step`, and what it names in the run's directory. Throws
// CheckpointError if it is malformed.
RunProgress read_commit_note(const std::string& note, Step step, const std::string& run_directory);

// RouterState: the corrections of routers' choices of a run that moves them
// (train.router_correction_rate), beside its steps. Checkpoints have them in their manifest. A step
// on drives names them by their hash, and their text lies in run.dir/router_corrections, durable
// before the step commits.

// Returns the corrections that the model's files hold, or none if the run moves none.
std::vector<float> initial_corrections(const ModelSource& source);

// Throws CheckpointError if the corrections saved at `path` are not of this model.
void check_corrections(const RunProgress& saved, const ModelSource& source,
                       const std::string& path);

// Makes the corrections after a step durable in the run's directory and removes those of steps that
// no commit names any more. Rank 0 calls it before the step commits.
void keep_corrections(const std::string& run_directory, const RunProgress& progress);

// Reads the corrections of a committed step. Throws CheckpointError if they are gone or damaged.
std::vector<float> kept_corrections(const std::string& run_directory, Step step, uint64_t hash);

}  // namespace longshore
