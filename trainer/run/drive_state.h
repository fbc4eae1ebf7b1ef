// DriveState: what the drives of offload.nvme hold for a run, and whether the run goes on from it.
// Decided by all ranks together before the engine opens the state files. Main thread.
#pragma once

#include <cstdint>
#include <string>

#include "nvme/commit/manifest.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

// The key under which the run's state files are to be opened. Files that this run may not go on
// from (checkpoint.resume says otherwise, or they were made for other ranks, units, formats or
// versions and hold nothing newer than the newest valid checkpoint) are removed first.
// CheckpointError where they hold, or a file of run.dir says that they held, steps that would be
// lost, and where a file there is no state file; ConfigError where they belong to another run.
// Until then nothing is changed, and no file that is not this run's ever is. Collective.
RunKey settle_drive_state(const MeasuredRun& setup, const TierPlan& plan,
                          const std::string& run_directory);

// Rank 0: state_key, where there is one, says from now on whether steps were committed.
void note_committed(const std::string& run_directory, bool committed);

// What a commit says of the run beside its state.
std::string commit_note(const RunProgress& progress);
// The run of a commit's note; `step` is the commit's. CheckpointError for a note that is none.
RunProgress read_commit_note(const std::string& note, Step step);

}  // namespace longshore
