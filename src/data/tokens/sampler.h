// Sampler: maps sample number n of the run to a sequence. It is a pure function of (seed, n), so
// resuming is free and the number of ranks does not matter. Immutable, any thread.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace longshore {

struct SamplerOptions {
  uint64_t seed = 0;
  int64_t sequences = 0;  // >= 1
  bool shuffle = true;
};

// DataCursor: the whole state of the data order; checkpoints store it.
struct DataCursor {
  uint64_t seed = 0;
  int64_t epoch = 0;     // from 0
  int64_t position = 0;  // samples of this epoch already taken
  bool operator==(const DataCursor&) const = default;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);

  // Returns the sequence of sample n, where n counts from 0 over all epochs. With shuffle every
  // epoch has its own permutation; otherwise sequences repeat in order.
  int64_t sequence_at(int64_t sample) const;

  // These convert a number of samples to a cursor and back.
  DataCursor cursor_after(int64_t samples) const;
  int64_t samples_before(const DataCursor& cursor) const;

  // Returns the epochs in `samples` samples, as a real number.
  double epochs_in(int64_t samples) const;
  // Returns the least number of further steps, after `seen` samples, until `epochs` epochs have
  // been seen since the first sample. The last step is filled from the next epoch. Returns 0 if
  // they are seen already; at least 1 if `seen` is 0.
  int64_t steps_for(double epochs, int64_t sequences_per_step, int64_t seen = 0) const;

 private:
  SamplerOptions options_;
};

// IndexPermutation: a keyed random permutation of 0..count-1 that computes any element without a
// table. It is a Feistel network over Philox on the next even power of two; values outside the
// range are permuted again. Immutable, any thread.

class IndexPermutation {
 public:
  // Purpose: separates the permutations that use the same seed.
  enum class Purpose : uint8_t { kSampleOrder = 1, kPackingOrder = 2, kHoldOut = 3, kWeight = 4 };

  // `round` separates permutations of one purpose, for example epochs. count >= 1.
  IndexPermutation(int64_t count, uint64_t seed, Purpose purpose, int64_t round);

  int64_t count() const { return count_; }
  // Returns the element at a position; 0 <= position < count.
  int64_t operator()(int64_t position) const;

 private:
  uint64_t scramble(uint64_t value) const;

  int64_t count_;
  int half_bits_;
  PhiloxKey key_;
  uint32_t purpose_;
  uint64_t round_;
};

}  // namespace longshore
