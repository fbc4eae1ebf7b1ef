// Sampler: which sequence is sample number n of the run. A pure function of (seed, n), so that
// resuming costs nothing and the number of ranks plays no part. Immutable, any thread.
#pragma once

#include <cstdint>

namespace longshore {

struct SamplerOptions {
  uint64_t seed = 0;
  int64_t sequences = 0;  // >= 1
  bool shuffle = true;
};

// Where the run stands in the data: its whole state, written to checkpoints.
struct DataCursor {
  uint64_t seed = 0;
  int64_t epoch = 0;     // from 0
  int64_t position = 0;  // samples of this epoch already taken
  bool operator==(const DataCursor&) const = default;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);

  // Sequence that is sample n, n from 0 over all epochs. With shuffle every epoch is a permutation
  // of its own; without, sequences go in order and wrap around.
  int64_t sequence_at(int64_t sample) const;

  // The state after `samples` samples, and back.
  DataCursor cursor_after(int64_t samples) const;
  int64_t samples_before(const DataCursor& cursor) const;

  // Epochs that `samples` samples are, as a real number.
  double epochs_in(int64_t samples) const;
  // Least number of steps of `sequences_per_step` samples, after `seen` samples, that see `epochs`
  // epochs from the first sample on; the last one is filled from the next epoch. 0 where they were
  // seen; without `seen` at least 1.
  int64_t steps_for(double epochs, int64_t sequences_per_step, int64_t seen = 0) const;

 private:
  SamplerOptions options_;
};

}  // namespace longshore
