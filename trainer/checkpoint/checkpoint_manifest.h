// CheckpointManifest: manifest.json of a portable checkpoint, as values. Plain values and pure
// functions; the text is written last, so a checkpoint with a valid manifest is complete.
//
//   <run.dir>/checkpoints/step-00000123/
//     state-00000-of-00001.safetensors   one for each rank of the shard group
//     manifest.json
//
// Everything is in coordinates of whole parameters, by the names in the model's files, so another
// number of ranks, other units and another state format can read it. A state file holds, for each
// of the rank's pieces of a trainable parameter:
//   <parameter>.master, <parameter>.exp_avg, <parameter>.exp_avg_sq
// Masters are F32; moments are as the writer's state format has them (checkpoint_moments.h).
// A whole parameter has its own shape; a piece of one is one-dimensional and its name ends in its
// elements, half-open: "<parameter>.master[4096:8192]". The manifest says the same as fields.
// Masters are the exact fp32 masters (split formats are joined). Frozen parameters are not stored:
// they are the base model's.
//
// Every checksum is xxh3-64 in 16 hex digits. "manifest_xxh3", the last member, is that of the
// manifest's own text with these 16 digits as zeros.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/json.h"
#include "shard/flat_layout.h"
#include "trainer/checkpoint/run_progress.h"

namespace longshore {

// Changes with kMomentCodeVersion too: older codes mean other moments.
inline constexpr int64_t kCheckpointVersion = 2;
inline constexpr const char* kManifestName = "manifest.json";

enum class StateKind : uint8_t { kMaster, kExpAvg, kExpAvgSq };
inline constexpr std::array<StateKind, 3> kStateKinds = {StateKind::kMaster, StateKind::kExpAvg,
                                                         StateKind::kExpAvgSq};
// "master", "exp_avg", "exp_avg_sq".
std::string_view name_of(StateKind kind);

struct CheckpointTensor {
  std::string name;       // in the state file
  std::string parameter;  // in the model's files
  StateKind kind = StateKind::kMaster;
  ElementRange range;  // of the whole parameter
  uint64_t hash = 0;
};

struct CheckpointFile {
  std::string name;
  Bytes bytes = 0;
  uint64_t hash = 0;
  std::vector<CheckpointTensor> tensors;  // in the order of their bytes
};

struct CheckpointParameter {
  std::string name;
  std::vector<int64_t> shape;  // the product fits in 64 bits

  int64_t elements() const;
};

struct CheckpointManifest {
  RunProgress progress;
  std::string state_format;                     // of the writer; any format can read any checkpoint
  std::vector<CheckpointParameter> parameters;  // the trainable ones
  std::vector<CheckpointFile> files;

  Bytes file_bytes() const;  // of all files
};

// The name of a tensor that holds `range` of a parameter of `elements` elements.
std::string state_tensor_name(const std::string& parameter, StateKind kind, ElementRange range,
                              int64_t elements);

std::string format_manifest(const CheckpointManifest& manifest);

// Throws CheckpointError "<path>: <what is wrong>" for a text that is damaged, of another version,
// or does not hold together: numbers out of range, ranges outside their parameter, file names that
// leave the directory or come twice.
CheckpointManifest parse_manifest(const std::string& text, const std::string& path);

// A file's part of the manifest; ranks hand theirs to rank 0 in this form.
Json to_json(const CheckpointFile& file);
// A file's part from that text, checked as parse_manifest does; `where` leads messages.
CheckpointFile parse_checkpoint_file(const std::string& text,
                                     const std::vector<CheckpointParameter>& parameters,
                                     const std::string& where);

}  // namespace longshore
