// ResumePoint: which checkpoint a run starts from. All ranks look at it together: each verifies its
// share of the files, and only what every rank finds valid is taken. Main thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace longshore {

struct FoundCheckpoint {
  std::optional<Checkpoint> checkpoint;  // verified
  std::vector<std::string> refused;      // newer ones that are damaged: path, file, what is wrong
  std::vector<std::string> set_aside;    // where `start_from_checkpoint` moved newer ones
};

// `resume` is "never" (nothing is found), "auto" (the newest valid checkpoint of `folder`; nothing
// where it has none at all) or a checkpoint's directory. Throws CheckpointError where checkpoints
// exist and none is valid, or the named one is damaged.
FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume, World& world);
// find_checkpoint for a process of its own.
FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume);

// find_checkpoint for a run that writes to `folder`: cleans up after a killed process, and sets
// aside what is newer than the found one (everything, where none is found). Before that `accept`
// is called with the step to start from; where it throws, nothing was set aside.
FoundCheckpoint start_from_checkpoint(
    const std::string& folder, const std::string& resume, World& world,
    const std::function<void(Step)>& accept = [](Step) {});

}  // namespace longshore
