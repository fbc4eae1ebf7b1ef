#include "data/sampler.h"

#include <cmath>

#include "base/errors.h"
#include "data/index_permutation.h"

namespace longshore {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  LONGSHORE_CHECK(options.sequences >= 1) << options.sequences;
}

int64_t Sampler::sequence_at(int64_t sample) const {
  LONGSHORE_CHECK(sample >= 0) << sample;
  const int64_t epoch = sample / options_.sequences, position = sample % options_.sequences;
  if (!options_.shuffle) return position;
  return IndexPermutation(options_.sequences, options_.seed,
                          IndexPermutation::Purpose::kSampleOrder, epoch)(position);
}

DataCursor Sampler::cursor_after(int64_t samples) const {
  return {options_.seed, samples / options_.sequences, samples % options_.sequences};
}

int64_t Sampler::samples_before(const DataCursor& cursor) const {
  return cursor.epoch * options_.sequences + cursor.position;
}

double Sampler::epochs_in(int64_t samples) const {
  return static_cast<double>(samples) / static_cast<double>(options_.sequences);
}

int64_t Sampler::steps_for(double epochs, int64_t sequences_per_step, int64_t seen) const {
  LONGSHORE_CHECK(epochs > 0.0 && sequences_per_step >= 1) << epochs << " " << sequences_per_step;
  const double samples =
      epochs * static_cast<double>(options_.sequences) - static_cast<double>(seen);
  // The small offset makes 0.1 of 10 sequences 1 sample, although 0.1 is inexact in binary.
  const double steps = std::ceil(samples / static_cast<double>(sequences_per_step) - 1e-9);
  return std::max<int64_t>(seen > 0 ? 0 : 1, static_cast<int64_t>(steps));
}

}  // namespace longshore
