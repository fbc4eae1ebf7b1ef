// Philox4x32-10: a counter-based random generator. It stores no state and computes any element
// directly. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace longshore {

struct PhiloxKey {
  uint32_t low = 0, high = 0;
};

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key.low,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key.high,
               static_cast<uint32_t>(product0)};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace longshore
