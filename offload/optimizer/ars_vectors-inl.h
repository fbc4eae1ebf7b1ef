// RandomSource: vectors of random bits with which the optimizer step rounds its moments (exp_avg,
// exp_avg_sq) stochastically. The generator is ARS: AES rounds over a counter, so an element's bits
// depend on its index, the update and the parameter's key alone, and equal those of random_half and
// random_word in shard/moments.h. Only adamw_vectors-inl.h includes it, once per instruction set.
// Each loop over a slice owns one, from the slice's first element on.
#if defined(LONGSHORE_ARS_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ARS_VECTORS
#undef LONGSHORE_ARS_VECTORS
#else
#define LONGSHORE_ARS_VECTORS
#endif

#include <hwy/highway.h>

#include "offload/optimizer/ars_fill.h"
#include "shard/moments.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {
#if HWY_NATIVE_FMA

namespace hn = hwy::HWY_NAMESPACE;

using AllBytes = hn::ScalableTag<uint8_t>;

// A vector has the bits of so many calls of the generator. A call gives 128 bits, 16 for each of 8
// elements.
constexpr size_t kCalls = hn::MaxLanes(AllBytes()) / 16;

#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3_DL
// The instruction set has no AES as wide as its vectors, but the CPU may. The widest AES that it
// has fills a buffer: with 16 registers, the loop has none free for keys.
constexpr bool kFilledAhead = true;

class RandomSource {
 public:
  using Vector = hn::Vec<AllBytes>;

  RandomSource(const RoundingStream& stream, internal::ArsFill fill)
      : fill_(fill), keys_(stream.key), call_(stream.first_element / 8), update_(stream.update) {}

  // Call it before the bits of every 128 elements.
  HWY_INLINE void refill() {
    fill_(keys_, call_, update_, buffer_);
    call_ += internal::kFillCalls;
  }
  // Returns 16 bits for each of the next 8 * kCalls elements; `served` of the 128 precede them.
  HWY_INLINE Vector next(size_t served) const { return hn::Load(AllBytes(), buffer_ + 2 * served); }

 private:
  alignas(16 * kCalls) uint8_t buffer_[16 * internal::kFillCalls];
  internal::ArsFill fill_;
  internal::ArsRoundKeys keys_;
  uint64_t call_, update_;
};

#else
// AES is as wide as the vectors here.
constexpr bool kFilledAhead = false;

class RandomSource {
 public:
  using Vector = hn::Vec<AllBytes>;

  RandomSource(const RoundingStream& stream, internal::ArsFill) {
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
      round_key = hn::LoadDup128(AllBytes(), reinterpret_cast<const uint8_t*>(words));
      key.low += kArsKeyStep.low;
      key.high += kArsKeyStep.high;
    }
  }

  HWY_INLINE void refill() {}
  // Returns 16 bits for each of the next 8 * kCalls elements.
  HWY_INLINE Vector next(size_t) {
    const hn::Repartition<uint64_t, AllBytes> longs;
    Vector result = hn::Xor(counters_, keys_[0]);
    for (int round = 1; round < kArsRounds; ++round) result = hn::AESRound(result, keys_[round]);
    result = hn::AESLastRound(result, keys_[kArsRounds]);
    counters_ =
        hn::BitCast(AllBytes(), hn::Add(hn::BitCast(longs, counters_), hn::BitCast(longs, step_)));
    return result;
  }

 private:
  static Vector load(const uint64_t* from) {
    return hn::Load(AllBytes(), reinterpret_cast<const uint8_t*>(from));
  }

  Vector counters_, step_;
  Vector keys_[kArsRounds + 1];
};

#endif
#endif
}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
