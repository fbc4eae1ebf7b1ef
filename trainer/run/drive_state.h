// DriveState: what the drives of offload.nvme hold for a run, and whether the run goes on from it.
// Decided by all ranks together before the engine opens the state files. Main thread.
//
// <run.dir>/state_key names the run on its drives: 128 random bits, made with the files.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"
#include "nvme/commit/agreement.h"
#include "nvme/commit/manifest.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/run/run_setup.h"

namespace longshore {

// The commit protocol's questions, asked of all ranks over a communicator.
class CommAgreement final : public Agreement {
 public:
  explicit CommAgreement(Communicator* all) : all_(all) {}
  Outcome reduce(const Ballot& mine) override;

 private:
  Communicator* all_;  // null: one rank
};

// The key under which the run's state files are to be opened. Files that this run may not go on
// from (checkpoint.resume says otherwise, or they were made for other ranks, units, formats or
// versions and hold nothing newer than the newest valid checkpoint) are removed first.
// CheckpointError where they hold steps that would be lost; ConfigError where they belong to
// another run. Collective.
RunKey settle_drive_state(const RunSetup& setup, const TierPlan& plan,
                          const std::string& run_directory);

// What a commit says of the run beside its state.
std::string commit_note(const RunProgress& progress);
// And back; `step` is the commit's. CheckpointError for a note that is not one.
RunProgress read_commit_note(const std::string& note, Step step);

}  // namespace longshore
