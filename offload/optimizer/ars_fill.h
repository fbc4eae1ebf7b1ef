// Fills memory with random bits of consecutive calls of ARS, for loops whose own instruction set
// has no AES as wide as its vectors. Pure functions, any thread; which one, the CPU decides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/ars.h"

namespace longshore::internal {

// What a fill makes: the random bits of 128 elements.
inline constexpr size_t kFillCalls = 16;

// The keys of all rounds, in the order of bytes that AES takes.
struct ArsRoundKeys {
  explicit ArsRoundKeys(ArsKey key);
  alignas(16) std::array<std::array<uint64_t, 2>, kArsRounds + 1> words;
};

// Calls [first, first + kFillCalls) of an update; `out` has 16 bytes for each, and is aligned
// to 32.
using ArsFill = void (*)(const ArsRoundKeys& keys, uint64_t first, uint64_t update, uint8_t* out);

#if defined(__x86_64__)
// The CPU has AES; the other: VAES and AVX2.
void fill_by_aes(const ArsRoundKeys& keys, uint64_t first, uint64_t update, uint8_t* out);
void fill_by_vaes(const ArsRoundKeys& keys, uint64_t first, uint64_t update, uint8_t* out);
#endif

}  // namespace longshore::internal
