// RandomSource: the random bits of moments, in vectors, from the first element of a slice on. Gives
// the bits of random_half and random_word in shard/moments.h. Included once for each instruction
// set, by adamw_vectors-inl.h alone; one owner, a loop.
#if defined(LONGSHORE_ARS_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ARS_VECTORS
#undef LONGSHORE_ARS_VECTORS
#else
#define LONGSHORE_ARS_VECTORS
#endif

#include <hwy/highway.h>

#include "shard/moments.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {
#if HWY_NATIVE_FMA

namespace hn = hwy::HWY_NAMESPACE;

using AllBytes = hn::ScalableTag<uint8_t>;

// Calls of 128 bits in a vector.
constexpr size_t kCalls = hn::MaxLanes(AllBytes()) / 16;

// Where AES is as wide as the vectors; elsewhere a vector is made of 128-bit parts.
#if HWY_ARCH_X86
constexpr bool kWideAes = HWY_TARGET <= HWY_AVX3_DL;
#else
constexpr bool kWideAes = kCalls == 1;
#endif
using KeyBytes = std::conditional_t<kWideAes, AllBytes, hn::Full128<uint8_t>>;

class RandomSource {
 public:
  using Vector = hn::Vec<AllBytes>;

  explicit RandomSource(const RoundingStream& stream) {
    const uint64_t first = stream.first_element / 8;
    alignas(64) uint64_t counters[2 * kCalls];
    alignas(64) uint64_t steps[2 * kCalls];
    for (uint64_t call = 0; call < kCalls; ++call) {
      counters[2 * call] = first + call;
      counters[2 * call + 1] = stream.update;
      steps[2 * call] = kCalls;
      steps[2 * call + 1] = 0;
    }
    counters_ = load(counters);
    step_ = load(steps);
    ArsKey key = stream.key;
    for (auto& round_key : keys_) {
      const uint64_t words[2] = {key.low, key.high};
      round_key = hn::LoadDup128(KeyBytes(), reinterpret_cast<const uint8_t*>(words));
      key.low += kArsKeyStep.low;
      key.high += kArsKeyStep.high;
    }
  }

  // 16 bits for each of the next 8 * kCalls elements.
  HWY_INLINE Vector next() {
    const hn::Repartition<uint64_t, AllBytes> longs;
    const Vector result = encrypt(AllBytes(), counters_);
    counters_ =
        hn::BitCast(AllBytes(), hn::Add(hn::BitCast(longs, counters_), hn::BitCast(longs, step_)));
    return result;
  }

 private:
  static Vector load(const uint64_t* from) {
    return hn::Load(AllBytes(), reinterpret_cast<const uint8_t*>(from));
  }

  template <class D>
  HWY_INLINE hn::Vec<D> encrypt(D d, hn::Vec<D> state) const {
    if constexpr (hn::MaxLanes(D()) == hn::MaxLanes(KeyBytes())) {
      state = hn::Xor(state, keys_[0]);
      for (int round = 1; round < kArsRounds; ++round) state = hn::AESRound(state, keys_[round]);
      return hn::AESLastRound(state, keys_[kArsRounds]);
    } else {
      const hn::Half<D> half;
      return hn::Combine(d, encrypt(half, hn::UpperHalf(half, state)),
                         encrypt(half, hn::LowerHalf(half, state)));
    }
  }

  Vector counters_, step_;
  hn::Vec<KeyBytes> keys_[kArsRounds + 1];
};

#endif
}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
