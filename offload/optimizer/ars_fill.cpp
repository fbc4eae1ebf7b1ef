#include "offload/optimizer/ars_fill.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace longshore::internal {

ArsRoundKeys::ArsRoundKeys(ArsKey key) {
  for (auto& words_of_round : words) {
    words_of_round = {key.low, key.high};
    key.low += kArsKeyStep.low;
    key.high += kArsKeyStep.high;
  }
}

#if defined(__x86_64__)
namespace {

// Eight states run at a time: a round of one state takes three or four cycles before its next round
// can start, and two rounds start per cycle.
constexpr size_t kStates = 8;

[[gnu::target("avx,aes"), gnu::always_inline]] inline __m128i key_at(const ArsRoundKeys& keys,
                                                                     size_t round) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(&keys.words[round]));
}
[[gnu::target("avx2,vaes"), gnu::always_inline]] inline __m256i wide_key_at(
    const ArsRoundKeys& keys, size_t round) {
  return _mm256_broadcastsi128_si256(
      _mm_load_si128(reinterpret_cast<const __m128i*>(&keys.words[round])));
}

}  // namespace

[[gnu::target("avx,aes")]] void fill_by_aes(const ArsRoundKeys& keys, uint64_t first,
                                            uint64_t update, uint8_t* out) {
  for (size_t begin = 0; begin < kFillCalls; begin += kStates) {
    __m128i states[kStates];
    for (size_t i = 0; i < kStates; ++i) {
      const auto call = static_cast<long long>(first + begin + i);
      states[i] =
          _mm_xor_si128(_mm_set_epi64x(static_cast<long long>(update), call), key_at(keys, 0));
    }
    for (size_t round = 1; round < kArsRounds; ++round) {
      for (__m128i& state : states) state = _mm_aesenc_si128(state, key_at(keys, round));
    }
    const __m128i last = key_at(keys, kArsRounds);
    auto* to = reinterpret_cast<__m128i*>(out) + begin;
    for (const __m128i& state : states) _mm_store_si128(to++, _mm_aesenclast_si128(state, last));
  }
}

[[gnu::target("avx2,vaes")]] void fill_by_vaes(const ArsRoundKeys& keys, uint64_t first,
                                               uint64_t update, uint8_t* out) {
  static_assert(2 * kStates == kFillCalls);
  const auto high = static_cast<long long>(update);
  const auto low = static_cast<long long>(first);
  __m256i counters = _mm256_set_epi64x(high, low + 1, high, low);
  __m256i states[kStates];
  for (__m256i& state : states) {
    state = _mm256_xor_si256(counters, wide_key_at(keys, 0));
    counters = _mm256_add_epi64(counters, _mm256_set_epi64x(0, 2, 0, 2));
  }
  for (size_t round = 1; round < kArsRounds; ++round) {
    for (__m256i& state : states) state = _mm256_aesenc_epi128(state, wide_key_at(keys, round));
  }
  const __m256i last = wide_key_at(keys, kArsRounds);
  auto* to = reinterpret_cast<__m256i*>(out);
  for (const __m256i& state : states) {
    _mm256_store_si256(to++, _mm256_aesenclast_epi128(state, last));
  }
}

#endif

}  // namespace longshore::internal
