// CheckpointWriter: writes a portable checkpoint of a rank's shards, in bounded memory: one unit's
// state is leased at a time and goes to the file in chunks. One thread.
//
// The checkpoint appears under its name by rename, complete and synced, manifest last; a writer
// that is destroyed or killed before that leaves older checkpoints as they are. With several ranks
// rank 0 owns the writer, every rank writes its state file into `directory()`, and rank 0 commits
// what they hand back (trainer/run/run_saver.h).
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "shard/state_sweep.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/sharded_model.h"

namespace longshore {

// The parameters that a checkpoint of the model holds.
std::vector<CheckpointParameter> trainable_parameters(const ModelSpec& spec);

// Writes the rank's state file into a directory. Throws IoError; the file is gone then.
CheckpointFile write_state_file(const std::string& directory, const ShardedModel& model,
                                const StateSweep& walk);

class CheckpointWriter {
 public:
  // Makes the temporary directory in `folder` (<run.dir>/checkpoints, made where missing).
  CheckpointWriter(const std::string& folder, Step step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // Removes the temporary directory unless the checkpoint was committed.
  ~CheckpointWriter();

  const std::string& directory() const { return temporary_; }
  // Adds the manifest and moves the checkpoint into place, over one of the same step. `files` in
  // the order of ranks. Returns its path.
  std::string commit(const CheckpointManifest& manifest);

 private:
  std::string path_;
  std::string temporary_;
  bool committed_ = false;
};

}  // namespace longshore
