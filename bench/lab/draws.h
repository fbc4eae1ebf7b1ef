// Draws: Philox random numbers for benches, equal in every run. A value; one thread.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace longshore {

class Draws {
 public:
  Draws(uint32_t seed, uint32_t stream) : key_{seed, stream} {}

  // Returns a number from 0 to count - 1.
  uint32_t below(uint32_t count) { return philox4x32({next_++, 0, 0, 0}, key_)[0] % count; }

 private:
  PhiloxKey key_;
  uint32_t next_ = 0;
};

}  // namespace longshore
