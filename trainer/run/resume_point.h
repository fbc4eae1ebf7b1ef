// ResumePoint: which checkpoint a run starts from. All ranks look at it together: each verifies its
// share of the files, and only what every rank finds valid is taken. Main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "trainer/checkpoint/checkpoint_reader.h"

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

}  // namespace longshore
