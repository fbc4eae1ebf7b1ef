// State files: the files of a rank's state, and of its activation checkpoints, one of each in each
// directory of offload.nvme. Free functions; the owner of what they return is the store.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/commit/manifest.h"
#include "nvme/drive/open_drive.h"
#include "nvme/parts/stripe_map.h"

namespace longshore {

enum class StateFile : uint8_t {
  kState,   // <directory>/rank-0003.state
  kInputs,  // <directory>/rank-0003.inputs, without a name once it is open: it ends with the
            // process
};
std::string state_file_path(const std::string& directory, int32_t rank,
                            StateFile file = StateFile::kState);

// What stands where a state file of a rank is to be.
struct StateFileContent {
  Bytes bytes = 0;                   // 0: no file, or an empty one
  std::optional<Manifest> manifest;  // the newest
  bool unknown = false;              // bytes where manifests are, and none of them is one
  std::optional<RunKey> claimed;     // of a block that begins as a manifest and is not whole
};
// Changes nothing. Waits for the lock as opening does.
StateFileContent read_state_file(const std::string& directory, int32_t rank);

struct StateFileOptions {
  std::vector<std::string> directories;  // one per drive; made where they are missing
  int32_t rank = 0;
  StateFile file = StateFile::kState;
  int depth = 32;
  IoEngine engine = IoEngine::kAuto;
};

// Makes or opens and locks the files, preallocated as the map wants them, and starts their threads;
// `window` is registered. DoesNotFitError before anything is allocated where a drive is too full.
std::vector<std::unique_ptr<Drive>> open_state_files(const StateFileOptions& options,
                                                     const StripeMap& map,
                                                     std::span<std::byte> window);

}  // namespace longshore
