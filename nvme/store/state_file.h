// StateFile: the files of a rank's state and of its activation checkpoints, one of each per
// directory of offload.nvme. Plain functions; the tier owns the drives that they return. One
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "nvme/commit/manifest.h"
#include "nvme/drive/drive.h"
#include "nvme/parts/stripe_map.h"

namespace longshore {

enum class StateFile : uint8_t {
  kState,   // <directory>/rank-0003.state
  kInputs,  // <directory>/rank-0003.inputs, unlinked once open: it ends with the process
};
std::string state_file_path(const std::string& directory, int32_t rank,
                            StateFile file = StateFile::kState);

// The content found at the path of a rank's state file.
struct StateFileContent {
  Bytes bytes = 0;                   // 0: no file, or an empty one
  std::optional<Manifest> manifest;  // the newest
  bool unknown = false;              // nonzero manifest blocks without a valid manifest
  std::optional<RunKey> claimed;     // from a block that begins like a manifest and is damaged
};
// Reads the file without changing it. Waits for its lock as open_state_files does.
StateFileContent read_state_file(const std::string& directory, int32_t rank);

struct StateFileOptions {
  std::vector<std::string> directories;  // one per drive; created if missing
  int32_t rank = 0;
  StateFile file = StateFile::kState;
  int depth = 32;
  IoEngine engine = IoEngine::kAuto;
};

// Creates or opens and locks the files, preallocated to the map's sizes, and starts their threads;
// `window` is registered. Throws DoesNotFitError before any allocation if a drive is too full.
std::vector<std::unique_ptr<Drive>> open_state_files(const StateFileOptions& options,
                                                     const StripeMap& map,
                                                     std::span<std::byte> window);

}  // namespace longshore
