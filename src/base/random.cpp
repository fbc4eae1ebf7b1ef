#include "base/random.h"

#include <random>

namespace longshore {

uint64_t random_word() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace longshore
