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

  // Of moments in bf16 a call serves one moment of eight elements, of codes both of four.
  RandomSource(const RoundingStream& stream, MomentFormat format) {
    const bool bf16 = format == MomentFormat::kBF16;
    const uint64_t stride = bf16 ? 2 : 1;
    const uint64_t first = bf16 ? stream.first_element / 8 * 2 : stream.first_element / 4;
    alignas(64) uint64_t counters[2 * kCalls];
    alignas(64) uint64_t steps[2 * kCalls];
    for (uint64_t call = 0; call < kCalls; ++call) {
      counters[2 * call] = first + call * stride;
      counters[2 * call + 1] = stream.update;
      steps[2 * call] = kCalls * stride;
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

  // Bits for both moments of the next elements: 16 for each, 8 * kCalls elements.
  struct Halves {
    hn::Vec<hn::Repartition<uint16_t, AllBytes>> first, second;
  };
  HWY_INLINE Halves next_halves() {
    const hn::Repartition<uint64_t, AllBytes> longs;
    const hn::Repartition<uint16_t, AllBytes> halves;
    // The calls of the first moment are even, so that the second's differ in one bit.
    const auto one = hn::OddEven(hn::Zero(longs), hn::Set(longs, uint64_t{1}));
    const Vector second = hn::Xor(counters_, hn::BitCast(AllBytes(), one));
    const Halves result = {hn::BitCast(halves, encrypt(AllBytes(), counters_)),
                           hn::BitCast(halves, encrypt(AllBytes(), second))};
    advance();
    return result;
  }

  // A word for each of the next 4 * kCalls elements.
  HWY_INLINE hn::Vec<hn::Repartition<uint32_t, AllBytes>> next_words() {
    const hn::Repartition<uint32_t, AllBytes> words;
    const auto result = hn::BitCast(words, encrypt(AllBytes(), counters_));
    advance();
    return result;
  }

 private:
  static Vector load(const uint64_t* from) {
    return hn::Load(AllBytes(), reinterpret_cast<const uint8_t*>(from));
  }

  HWY_INLINE void advance() {
    const hn::Repartition<uint64_t, AllBytes> longs;
    counters_ =
        hn::BitCast(AllBytes(), hn::Add(hn::BitCast(longs, counters_), hn::BitCast(longs, step_)));
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
