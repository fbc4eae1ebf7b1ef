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
// another run, and none if it throws: CheckpointError if steps that are committed on the drives, or
// recorded in run.dir as committed, would be lost, or if a file is no state file; ConfigError if a
// file is another run's. Collective.
RunKey resolve_drive_state(const MeasuredRun& setup, const TierPlan& plan,
                           const std::string& run_directory);

// Records in run.dir/state_key (the run's key on its drives), if that exists, whether steps were
// committed. Rank 0 calls it.
void note_committed(const std::string& run_directory, bool committed);

// Returns the payload of a commit: the run's progress.
std::string commit_note(const RunProgress& progress);
// Reads the payload of the commit of `step`, and the file in the run's directory that it names.
// Throws CheckpointError if it is malformed.
RunProgress read_commit_note(const std::string& note, Step step, const std::string& run_directory);

// The router corrections of a run that trains them (train.router_correction_rate). Checkpoints have
// them in their manifest. A step committed on drives names them by their hash; their text is in
// run.dir/router_corrections and durable before the step commits.

// Returns the corrections in the model's files; empty if the run does not change corrections.
std::vector<float> initial_corrections(const ModelSource& source);

// Throws CheckpointError if the corrections saved at `path` do not fit this model.
void check_corrections(const RunProgress& saved, const ModelSource& source,
                       const std::string& path);

// Writes the corrections after a step durably to the run's directory and removes those that no
// commit names any more. Rank 0 calls it before the step commits.
void keep_corrections(const std::string& run_directory, const RunProgress& progress);

// Reads the corrections of a committed step. Throws CheckpointError if they are gone or damaged.
std::vector<float> kept_corrections(const std::string& run_directory, Step step, uint64_t hash);

}  // namespace longshore
