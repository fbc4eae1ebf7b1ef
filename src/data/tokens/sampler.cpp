#include "data/tokens/sampler.h"

#include <bit>
#include <cmath>

#include "base/errors.h"

namespace longshore {
namespace {

// With large halves four rounds of a Feistel network are already hard to tell from random. Small
// sets have short halves, which need more rounds.
constexpr uint32_t kFeistelRounds = 8;

}  // namespace

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

IndexPermutation::IndexPermutation(int64_t count, uint64_t seed, Purpose purpose, int64_t round)
    : count_(count),
      key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      purpose_(static_cast<uint32_t>(purpose)),
      round_(static_cast<uint64_t>(round)) {
  LONGSHORE_CHECK(count >= 1 && count <= (int64_t{1} << 60)) << count;
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  half_bits_ = bits <= 2 ? 1 : (bits + 1) / 2;
}

uint64_t IndexPermutation::scramble(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint32_t feistel_round = 0; feistel_round < kFeistelRounds; ++feistel_round) {
    const std::array<uint32_t, 4> random =
        philox4x32({static_cast<uint32_t>(right), (purpose_ << 8) | feistel_round,
                    static_cast<uint32_t>(round_), static_cast<uint32_t>(round_ >> 32)},
                   key_);
    const uint64_t mixed = left ^ (random[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

int64_t IndexPermutation::operator()(int64_t position) const {
  LONGSHORE_CHECK(position >= 0 && position < count_) << position << " of " << count_;
  uint64_t value = static_cast<uint64_t>(position);
  // count is at least a quarter of the network's domain (half of 4 for the smallest), so the loop
  // ends after at most four iterations on average.
  do {
    value = scramble(value);
  } while (value >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(value);
}

}  // namespace longshore
