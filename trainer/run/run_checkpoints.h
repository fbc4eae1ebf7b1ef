// The checkpoints of a run, from all ranks. Resuming: all ranks look for a checkpoint together,
// each verifies its share of the files, and only what every rank finds valid is loaded. Saving:
// every rank of the first replica writes its own state file without talking to the others; rank 0
// collects what they wrote and commits the manifest last. All ranks must see the same file system.
// Main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "offload/engine/engine.h"
#include "offload/staging/rank_groups.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/model/model_source.h"
#include "trainer/model/weight_check.h"

namespace longshore {

struct FoundCheckpoint {
  std::optional<Checkpoint> checkpoint;  // verified
  std::vector<std::string> refused;      // newer ones that are damaged: path, file, what is wrong
};

// `resume` is "never" (nothing is found), "auto" (the newest valid checkpoint of `folder`; nothing
// where it has none at all) or a checkpoint's directory. Throws CheckpointError where checkpoints
// exist and none is valid, or the named one is damaged.
FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume, World& world);
// find_checkpoint for a process of its own.
FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume);

// Why a run of this model cannot continue `saved`, found at `path`; empty where it can.
std::string model_difference(const RunProgress& saved, const std::string& path,
                             const ModelSource& source);

// Loads the values that the model has before the first step; `check` gets all of them.
void load_initial_weights(Engine& engine, const ModelSource& source, WeightCheck& check);
// Loads the state of a checkpoint of the engine's model.
void restore_checkpoint(const Checkpoint& checkpoint, Engine& engine);

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
                                const StateSweep& sweep, World& world, const RankGroups& groups);

}  // namespace longshore
