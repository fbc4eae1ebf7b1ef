// Names and housekeeping of <run.dir>/checkpoints. Plain functions; only the
// process that holds the run directory's lock may call those that change files.
//
// A complete checkpoint is called "step-00000123". These endings mark other directories:
//   .writing    an unfinished checkpoint; if no run is active, its writer was killed
//   .replaced   an old checkpoint, replaced by a newer one of the same step
//   .removing   a checkpoint that is being deleted
//   .abandoned  a checkpoint of an abandoned history, kept until `ckpt prune`
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/json.h"

namespace longshore {

inline constexpr std::string_view kWritingSuffix = ".writing";
inline constexpr std::string_view kReplacedSuffix = ".replaced";
inline constexpr std::string_view kRemovingSuffix = ".removing";
inline constexpr std::string_view kAbandonedSuffix = ".abandoned";

// Returns the directory name of a step: "step-00000123".
std::string checkpoint_name(Step step);

struct CheckpointEntry {
  Step step;
  std::string path;
};

// Lists directories with a checkpoint's name, newest first, valid or not; a folder may be missing.
std::vector<CheckpointEntry> list_checkpoints(const std::string& folder);

// kSizes checks the manifest and the files' sizes and headers; kChecksums also every checksum.
enum class CheckDepth : uint8_t { kSizes, kChecksums };

struct CheckpointReport {
  CheckpointEntry entry;
  Bytes bytes = 0;      // total of its files, from the manifest
  std::string problem;  // empty if all checks passed
  bool valid() const { return problem.empty(); }
};

std::vector<CheckpointReport> inspect_checkpoints(const std::string& folder, CheckDepth depth);
// Returns a table with one line per checkpoint.
std::string format_reports(const std::vector<CheckpointReport>& reports);
Json to_json(const std::vector<CheckpointReport>& reports);

// Removes all checkpoints older than the keep-th newest valid one (keep >= 1), so the last valid
// one is never removed. Newer damaged ones stay for inspection. Returns the removed paths.
std::vector<std::string> prune_checkpoints(const std::string& folder, int64_t keep,
                                           CheckDepth depth);

// Removes a checkpoint atomically: a killed process leaves no partial checkpoint under the name.
void remove_checkpoint(const std::string& path);

// Renames `temporary` to `path`, replaces an existing `path`, and makes the change durable.
void move_into_place(const std::string& temporary, const std::string& path);

// Renames checkpoints of later steps than `step` to ".abandoned" and returns the new paths. A run
// that starts at `step` must not resume from them or count them when it prunes.
std::vector<std::string> set_aside_newer(const std::string& folder, Step step);

// These list and delete the checkpoints of abandoned histories. Both return the paths.
std::vector<std::string> list_abandoned(const std::string& folder);
std::vector<std::string> remove_abandoned(const std::string& folder);

// Removes leftovers of a killed process, and restores a ".replaced" checkpoint without successor.
void clean_leftovers(const std::string& folder);

}  // namespace longshore
