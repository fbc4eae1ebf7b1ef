// Saves and finds the checkpoints of a run, collectively. To resume, each rank
// verifies its share of the files, and a checkpoint loads only if all ranks find it valid. To save,
// each rank of the first replica writes its own state file without communication; rank 0 collects
// the checksums and commits the manifest last. All ranks must see one file system. Main thread.
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

namespace longshore {

struct FoundCheckpoint {
  std::optional<Checkpoint> checkpoint;  // verified
  std::vector<std::string> refused;      // newer ones that are damaged: path, file, what is wrong
};

// Finds a checkpoint: with `resume` "never" none, with "auto" the newest valid one of `folder`,
// else the one in the directory `resume`. Throws CheckpointError if the named one is damaged, or if
// checkpoints exist and none is valid.
FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume, World& world);
// Finds a checkpoint in a single process.
FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume);

// Returns why a run of this model cannot resume from `saved`, found at `path`; empty if it can.
std::string model_difference(const RunProgress& saved, const std::string& path,
                             const ModelSource& source);

// Loads the model's values before the first step, and throws if ranks of `world` read different
// values. Returns a sentence that names tensors with values that are not finite, or "". `world` is
// null for a single process that does not train. Collective.
std::string load_initial_weights(Engine& engine, const ModelSource& source, World* world);
// Loads the state of a checkpoint of the engine's model.
void restore_checkpoint(const Checkpoint& checkpoint, Engine& engine);

struct SavedCheckpoint {
  std::string path;
  Bytes bytes = 0;
  double seconds = 0.0;
};

// Writes and commits a checkpoint, sets aside checkpoints of later steps, which belong to an
// abandoned history, and removes the oldest until `keep` (>= 1) valid ones remain. Throws IoError
// (such as a full disk) and then removes none. Each rank returns after the commit. Collective.
SavedCheckpoint save_checkpoint(const std::string& folder, int64_t keep,
                                const RunProgress& progress, const ShardedModel& model,
                                const StateSweep& sweep, World& world, const RankGroups& groups);

}  // namespace longshore
