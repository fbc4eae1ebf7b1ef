// CheckpointDirectory: the names under <run.dir>/checkpoints, and what keeps that folder in order.
// Plain functions; only the process that holds the run directory's lock may call those that change
// something.
//
// Names: "step-00000123" is a complete checkpoint. A name with one of these endings is not one:
//   .writing    is being written; its writer was killed when no run is active
//   .replaced   gave way to a newer checkpoint of the same step
//   .removing   is being removed
//   .abandoned  belongs to a course of the run that was left; kept until `ckpt prune`
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

// "step-00000123".
std::string checkpoint_name(Step step);

struct CheckpointEntry {
  Step step;
  std::string path;
};

// Every directory with a checkpoint's name, newest first, valid or not. A missing folder has none.
std::vector<CheckpointEntry> list_checkpoints(const std::string& folder);

// How much is checked: the manifest and the files' sizes and headers, or every checksum as well.
enum class CheckDepth : uint8_t { kSizes, kChecksums };

struct CheckpointReport {
  CheckpointEntry entry;
  Bytes bytes = 0;      // of its files, by the manifest
  std::string problem;  // empty: valid as far as it was checked
  bool valid() const { return problem.empty(); }
};

std::vector<CheckpointReport> inspect_checkpoints(const std::string& folder, CheckDepth depth);
// A table, one line for each checkpoint; and the same as an array of objects.
std::string format_reports(const std::vector<CheckpointReport>& reports);
Json to_json(const std::vector<CheckpointReport>& reports);

// Removes all that is older than the keep-th newest valid checkpoint (keep >= 1), so that a valid
// one is never the last to go; damaged ones that are newer stay for the user to see. Returns the
// paths removed.
std::vector<std::string> prune_checkpoints(const std::string& folder, int64_t keep,
                                           CheckDepth depth);

// Removes a checkpoint so that a process killed meanwhile leaves no half of it under its name.
void remove_checkpoint(const std::string& path);

// Puts `temporary` in the place of `path`, which may exist, and makes that durable.
void move_into_place(const std::string& temporary, const std::string& path);

// Renames the checkpoints of later steps than `step`, where a run starts from: they are of another
// course, and would be resumed, or counted when old ones are removed, as if they were this one's.
// Returns the new paths.
std::vector<std::string> set_aside_newer(const std::string& folder, Step step);

// Those of courses that were left, by path; and removes them for good.
std::vector<std::string> list_abandoned(const std::string& folder);
std::vector<std::string> remove_abandoned(const std::string& folder);

// Removes what a killed process left, and takes back a checkpoint whose replacement never came.
void clean_leftovers(const std::string& folder);

}  // namespace longshore
