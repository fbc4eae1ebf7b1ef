// ars_fill: fills memory with random bits of consecutive ARS calls, for loops whose instruction set
// has no AES as wide as its vectors. Pure functions, any thread; the CPU decides which one runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/random.h"

namespace longshore::internal {

// The calls of one fill, which give the random bits of 128 elements.
inline constexpr size_t kFillCalls = 16;

// The keys of all rounds, in the byte order of AES.
struct ArsRoundKeys {
  explicit ArsRoundKeys(ArsKey key);
  alignas(16) std::array<std::array<uint64_t, 2>, kArsRounds + 1> words;
};

// Runs calls [first, first + kFillCalls) of an update; `out` has 16 bytes per call, 32-aligned.
using ArsFill = void (*)(const ArsRoundKeys& keys, uint64_t first, uint64_t update, uint8_t* out);

#if defined(__x86_64__)
// The first needs a CPU with AES, the second one with VAES and AVX2.
void fill_by_aes(const ArsRoundKeys& keys, uint64_t first, uint64_t update, uint8_t* out);
void fill_by_vaes(const ArsRoundKeys& keys, uint64_t first, uint64_t update, uint8_t* out);
#endif

}  // namespace longshore::internal
