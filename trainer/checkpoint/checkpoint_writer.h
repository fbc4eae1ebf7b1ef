// CheckpointWriter: writes a portable checkpoint of a rank's shards in bounded memory: it leases
// one unit's state at a time and writes it in chunks. One thread.
//
// A rename publishes the checkpoint after everything is synced, the manifest last. If the writer is
// destroyed or killed earlier, older checkpoints stay unchanged. With several ranks rank 0 owns the
// writer, every rank writes its state file into `directory()`, and rank 0 commits the returned
// entries (trainer/run/run_checkpoints.h).
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "shard/shard_store.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/sharded_model.h"

namespace longshore {

// Returns the parameters that a checkpoint of the model contains.
std::vector<CheckpointParameter> trainable_parameters(const ModelSpec& spec);

// Writes the rank's state file into `directory`. Throws IoError after it removed the file.
CheckpointFile write_state_file(const std::string& directory, const ShardedModel& model,
                                const StateSweep& sweep);

class CheckpointWriter {
 public:
  // Creates the temporary directory in `folder` (<run.dir>/checkpoints), and `folder` if missing.
  CheckpointWriter(const std::string& folder, Step step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // Removes the temporary directory unless the checkpoint was committed.
  ~CheckpointWriter();

  const std::string& directory() const { return temporary_; }
  // Adds the manifest and renames the checkpoint into place; it replaces one of the same step.
  // `files` of the manifest are in the order of ranks. Returns the path.
  std::string commit(const CheckpointManifest& manifest);

 private:
  std::string path_;
  std::string temporary_;
  bool committed_ = false;
};

}  // namespace longshore
