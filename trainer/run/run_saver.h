// Saving a run's checkpoint from all ranks: every rank of the first replica writes its own state
// file without talking to the others; rank 0 collects what they wrote and commits the manifest
// last. All ranks must see the same file system. Main thread.
#pragma once

#include <string>

#include "comm/world/world.h"
#include "offload/staging/rank_groups.h"
#include "trainer/checkpoint/checkpoint_writer.h"

namespace longshore {

struct SavedCheckpoint {
  std::string path;
  Bytes bytes = 0;
  double seconds = 0.0;
};

// Writes, commits, sets aside checkpoints of later steps (they are of a course that was left), and
// removes old ones until `keep` (>= 1) valid ones are left. Throws IoError (a full disk) with all
// older checkpoints kept. Every rank returns once the checkpoint is in place.
SavedCheckpoint save_checkpoint(const std::string& folder, int64_t keep,
                                const RunProgress& progress, const ShardedModel& model,
                                const StateSweep& walk, World& world, const RankGroups& groups);

}  // namespace longshore
