// RunProgress: the progress of a run without its parameter state, and the strict parser for it in
// checkpoint manifests and in the payload of commits on drives. Plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/json.h"
#include "data/tokens/sampler.h"
#include "trainer/checkpoint/json_fields.h"
#include "trainer/checkpoint/start_identity.h"

namespace longshore {

// An upper bound for steps and samples that still allows additions without overflow.
inline constexpr int64_t kMostSteps = int64_t{1} << 53;

// DataState is the position in the training data.
struct DataState {
  DataCursor cursor;
  int64_t sequences = 0;     // per epoch; 0 if written by a version that did not store it
  uint64_t fingerprint = 0;  // hash of the tokens
  bool operator==(const DataState&) const = default;
};

struct RunProgress {
  Step step;                   // finished steps, skipped ones included
  int64_t adam_step = 0;       // applied updates
  int64_t skipped_total = 0;   // steps with a non-finite loss or norm
  int64_t skipped_in_row = 0;  // length of the current series of skipped steps
  uint64_t seed = 0;
  DataState data;
  std::string model_fingerprint;  // identifies the base model
  std::string config_text;        // the resolved run file; not in commit payloads
  // The router corrections, if the run trains them (model/units/router_load.h). A commit payload
  // has the hash of their text, which is in the run's directory.
  std::vector<float> router_corrections = {};
  // The identity of the values that the run began with. Commit payloads lack it: a run whose state
  // is on drives has it in its directory.
  StartIdentity start = {};
};

// Returns the bits of each value as 8 hexadecimal digits, end to end.
std::string corrections_text(std::span<const float> corrections);
// Reads that text. Throws CheckpointError, which names `where`.
std::vector<float> read_corrections(const std::string& text, const std::string& where);

// Returns the "sampler" object: "seed", "epoch", "position", "sequences" (if known) and "data", the
// fingerprint.
Json sampler_json(const DataState& data);

// Reads "seed", "sampler" and "model_fingerprint" into `progress`, whose counters must be set
// already, and checks that all values are consistent. Throws CheckpointError.
void read_progress(const JsonFields& fields, RunProgress& progress);

}  // namespace longshore
