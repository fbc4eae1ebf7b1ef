// IndexPermutation: a keyed random permutation of 0..count-1 that computes any element without a
// table. It is a Feistel network over Philox on the next even power of two; values outside the
// range are permuted again. Immutable, any thread.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace longshore {

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
