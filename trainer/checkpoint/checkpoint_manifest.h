// CheckpointManifest: manifest.json of a portable checkpoint, as values. It is written last, so a
// checkpoint with a valid manifest is complete. Plain values and pure functions.
//
//   <run.dir>/checkpoints/step-00000123/
//     state-00000-of-00001.safetensors   one for each rank of the shard group
//     manifest.json
//
// All offsets count elements of whole parameters under their names in the model's files, so a run
// with other ranks, units or state format can read the checkpoint. A state file holds for each of
// the rank's pieces of a trainable parameter:
//   <parameter>.master, and <parameter>.<region> for each region of the update rule, in its order
// A whole parameter has its own shape. A piece is one-dimensional and its name ends in its
// half-open element range, "<parameter>.master[4096:8192]", which the manifest repeats as fields.
// Masters are the exact F32 masters, joined from split formats; regions have the writer's state
// format (checkpoint_moments.h). Frozen parameters are not stored, because the base model has them.
// The member "regions" lists the rule's regions; without it they are kDefaultRegions. A region with
// the member "use" is kept beside these parameters alone: "elements", or "matrices" for those whose
// entry has "whole_matrices": true.
//
// Checksums are xxh3-64 as 16 hex digits. The last member, "manifest_xxh3", is the checksum of the
// manifest's text with these 16 digits set to zero.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/json.h"
#include "shard/flat_layout.h"
#include "shard/state_format.h"
#include "trainer/checkpoint/run_progress.h"

namespace longshore {

// Must also change with kMomentCodeVersion, because other codes encode other moments.
inline constexpr int64_t kCheckpointVersion = 2;
inline constexpr const char* kManifestName = "manifest.json";

// The kind of a tensor with masters; the other kinds are the names of regions.
inline constexpr const char* kMasterKind = "master";

struct CheckpointTensor {
  std::string name;       // in the state file
  std::string parameter;  // in the model's files
  std::string kind = kMasterKind;
  ElementRange range;  // elements of the whole parameter
  uint64_t hash = 0;
};

struct CheckpointFile {
  std::string name;
  Bytes bytes = 0;
  uint64_t hash = 0;
  std::vector<CheckpointTensor> tensors;  // ordered by offset
};

struct CheckpointParameter {
  std::string name;
  std::vector<int64_t> shape;   // the product fits in 64 bits
  bool whole_matrices = false;  // ParamSpec::whole_matrices

  int64_t elements() const;
};

// A region of the update rule's state (StateRegion), as a checkpoint names it.
struct CheckpointRegion {
  std::string name;
  Moment moment = Moment::kFirst;
  RegionUse use = RegionUse::kAll;
  bool operator==(const CheckpointRegion&) const = default;
};
std::vector<CheckpointRegion> checkpoint_regions(std::span<const StateRegion> regions);

struct CheckpointManifest {
  RunProgress progress;
  std::string state_format;  // the writer's; any format reads any checkpoint
  std::vector<CheckpointRegion> regions = checkpoint_regions(kDefaultRegions);
  std::vector<CheckpointParameter> parameters;  // trainable parameters only
  std::vector<CheckpointFile> files;

  Bytes file_bytes() const;  // sum over all files
};

// Returns the tensor name for `range` of a parameter with `elements` elements.
std::string state_tensor_name(const std::string& parameter, std::string_view kind,
                              ElementRange range, int64_t elements);

std::string format_manifest(const CheckpointManifest& manifest);

// Throws CheckpointError "<path>: <what is wrong>" if the text is damaged, of another version or
// inconsistent: numbers out of range, ranges outside their parameter, file names that leave the
// directory or repeat.
CheckpointManifest parse_manifest(const std::string& text, const std::string& path);

// Converts a file's manifest entry; other ranks send theirs to rank 0 in this form.
Json to_json(const CheckpointFile& file);
// Parses a file's manifest entry with the same checks as parse_manifest, which are of the
// parameters and regions of `manifest`. `where` starts messages.
CheckpointFile parse_checkpoint_file(const std::string& text, const CheckpointManifest& manifest,
                                     const std::string& where);

}  // namespace longshore
