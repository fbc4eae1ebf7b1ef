// RunProgress: where a run stands, besides the state of its parameters, and its one strict reader,
// for the manifests of checkpoints and for the notes of commits on drives. Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/json.h"
#include "data/sampler.h"
#include "trainer/checkpoint/json_fields.h"

namespace longshore {

// More steps, or samples, than any run has; what is added to them does not wrap.
inline constexpr int64_t kMostSteps = int64_t{1} << 53;

// Where the data stands.
struct DataState {
  DataCursor cursor;
  int64_t sequences = 0;     // of an epoch; 0 where an older program did not say
  uint64_t fingerprint = 0;  // of the tokens
  bool operator==(const DataState&) const = default;
};

struct RunProgress {
  Step step;                   // finished steps, skipped ones included
  int64_t adam_step = 0;       // applied updates
  int64_t skipped_total = 0;   // steps with a non-finite loss or norm
  int64_t skipped_in_row = 0;  // the last so many steps were skipped
  uint64_t seed = 0;
  DataState data;
  std::string model_fingerprint;  // of the base model
  std::string config_text;        // the resolved run file; not in notes
};

// The members "adam_step", "skipped_total", "skipped_in_row", "seed", "sampler" and
// "model_fingerprint"; the step and the run file are kept elsewhere.
Json sampler_json(const DataState& data);

// Reads "seed", "sampler" and "model_fingerprint" into `progress`, whose counters are set already,
// and checks that all of it holds together. CheckpointError.
void read_progress(const JsonFields& fields, RunProgress& progress);

}  // namespace longshore
