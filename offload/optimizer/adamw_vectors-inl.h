// adamw_vectors: loads, formula, rounding and stores of the update on vectors. Only
// adamw_kernels.cpp includes it, once per instruction set. Every function gives the bits of its
// scalar twin in adamw_kernels.h, number_formats.h and moments.h.
#if defined(LONGSHORE_ADAMW_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ADAMW_VECTORS
#undef LONGSHORE_ADAMW_VECTORS
#else
#define LONGSHORE_ADAMW_VECTORS
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "offload/optimizer/adamw.h"
#include "offload/optimizer/ars_vectors-inl.h"
#include "shard/moments.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {
#if HWY_NATIVE_FMA

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Pairs = hn::RepartitionToWide<Words>;  // half as many lanes of 64 bits
using Halves = hn::Rebind<uint16_t, Floats>;
using Codes = hn::Rebind<uint8_t, Floats>;
using Both = hn::Repartition<uint16_t, Floats>;  // twice as many lanes of 16 bits
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;

// Constant, because vectors of all compiled x86 and NEON targets have a fixed size.
constexpr size_t kLanes = hn::MaxLanes(Floats());

// Short vectors come with a short instruction window, which holds fewer elements than wait for
// square root and division. Blocks therefore run in several passes with short waits: AVX2 on Zen 3,
// in L2, took 0.69 ns per element in one pass and 0.60 ns in two.
constexpr bool kFewRegisters = HWY_TARGET == HWY_AVX2;

enum class Form { kMaster, kMasterAndParameter, kSplit };

template <MomentFormat kMoments>
using MomentType =
    std::conditional_t<kMoments == MomentFormat::kF32, float,
                       std::conditional_t<kMoments == MomentFormat::kBF16, uint16_t, uint8_t>>;

// The number of elements of one loop step.
template <MomentFormat kMoments>
constexpr size_t kStep = kMoments == MomentFormat::kF32                    ? 2 * kLanes
                         : kMoments == MomentFormat::kInt8 || kFilledAhead ? kMomentBlockElements
                                                                           : 4 * kLanes;

// Pointers to the streams of a slice, all at the same element.
template <typename Gradient>
struct Streams {
  float* master;
  uint16_t* high;
  uint16_t* low;
  std::byte* m;
  std::byte* v;
  float* m_units;
  float* v_units;
  const Gradient* gradient;
  size_t moment_width;

  HWY_INLINE Streams from(size_t i) const {
    const size_t block = i / kMomentBlockElements;
    return {shifted(master, i),      shifted(high, i),     shifted(low, i),
            m + i * moment_width,    v + i * moment_width, shifted(m_units, block),
            shifted(v_units, block), gradient + i,         moment_width};
  }
  // Returns null for streams that the slice lacks.
  template <typename T>
  static HWY_INLINE T* shifted(T* stream, size_t elements) {
    return stream == nullptr ? nullptr : stream + elements;
  }
};

template <typename Gradient>
Streams<Gradient> streams_of(const UpdateSlice& slice) {
  // An empty span's pointer may be dangling, so it becomes null.
  const auto start = [](auto span) { return span.empty() ? nullptr : span.data(); };
  return {start(slice.master),
          start(slice.high),
          start(slice.low),
          start(exp_avg(slice).values),
          start(exp_avg_sq(slice).values),
          start(exp_avg(slice).units),
          start(exp_avg_sq(slice).units),
          reinterpret_cast<const Gradient*>(slice.gradient.data()),
          static_cast<size_t>(width_of(exp_avg(slice).format))};
}

// Hides the value from the compiler, which would otherwise rebuild the vector for each block.
HWY_INLINE WordVector kept(uint32_t word) {
  asm("" : "+r"(word));
  return hn::Set(Words(), word);
}

struct VectorScalars {
  explicit VectorScalars(const AdamWScalars& s)
      : clip_scale(hn::Set(Floats(), s.clip_scale)),
        beta1(hn::Set(Floats(), s.beta1)),
        one_minus_beta1(hn::Set(Floats(), s.one_minus_beta1)),
        beta2(hn::Set(Floats(), s.beta2)),
        one_minus_beta2(hn::Set(Floats(), s.one_minus_beta2)),
        keep(hn::Set(Floats(), s.keep)),
        step_size(hn::Set(Floats(), s.step_size)),
        inv_sqrt_c2(hn::Set(Floats(), s.inv_sqrt_c2)),
        eps(hn::Set(Floats(), s.eps)),
        one(hn::BitCast(Both(), kept(0x00010001u))) {}
  FloatVector clip_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  FloatVector keep, step_size, inv_sqrt_c2, eps;
  hn::Vec<Both> one;
};

// Computes adamw_parameter; `root` is the square root of the second moment.
HWY_INLINE void update_parameter_by(FloatVector m, FloatVector root, FloatVector& p,
                                    const VectorScalars& s) {
  p = hn::Mul(p, s.keep);
  const FloatVector divisor = hn::Add(hn::Mul(root, s.inv_sqrt_c2), s.eps);
  p = hn::Sub(p, hn::Div(hn::Mul(s.step_size, m), divisor));
}
HWY_INLINE void update_parameter(FloatVector m, FloatVector v, FloatVector& p,
                                 const VectorScalars& s) {
  update_parameter_by(m, hn::Sqrt(v), p, s);
}

// Computes adamw_element's moments.
HWY_INLINE void update_moments(FloatVector gradient, FloatVector& m, FloatVector& v,
                               const VectorScalars& s) {
  const FloatVector g = hn::Mul(gradient, s.clip_scale);
  m = hn::MulAdd(s.beta1, m, hn::Mul(s.one_minus_beta1, g));
  v = hn::MulAdd(s.beta2, v, hn::Mul(hn::Mul(s.one_minus_beta2, g), g));
}
HWY_INLINE void update(FloatVector gradient, FloatVector& m, FloatVector& v, FloatVector& p,
                       const VectorScalars& s) {
  update_moments(gradient, m, v, s);
  update_parameter(m, v, p, s);
}

HWY_INLINE WordVector load_wide(const uint16_t* from) {
  return hn::PromoteTo(Words(), hn::LoadU(Halves(), from));
}
HWY_INLINE FloatVector load_float(const float* from) {
  return hn::LoadU(Floats(), from);
}
HWY_INLINE FloatVector load_float(const uint16_t* bf16) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(load_wide(bf16)));
}

// Computes join_master: the lower half's sign extension undoes the rounding of the upper half.
HWY_INLINE FloatVector load_split(const uint16_t* high, const uint16_t* low) {
  const hn::RebindToSigned<Words> integers;
  const hn::RebindToSigned<Halves> halves;
  const auto lower =
      hn::PromoteTo(integers, hn::LoadU(halves, reinterpret_cast<const int16_t*>(low)));
  const auto upper = hn::BitCast(integers, hn::ShiftLeft<16>(load_wide(high)));
  return hn::BitCast(Floats(), hn::Add(upper, lower));
}

template <Form kForm, typename Gradient>
HWY_INLINE FloatVector load_master(const Streams<Gradient>& at, size_t i) {
  if constexpr (kForm == Form::kSplit) return load_split(at.high + i, at.low + i);
  return hn::LoadU(Floats(), at.master + i);
}

// Return the upper and the lower halves of the words of two vectors.
HWY_INLINE hn::Vec<Both> upper_halves(WordVector first, WordVector second) {
  return hn::ConcatOdd(Both(), hn::BitCast(Both(), second), hn::BitCast(Both(), first));
}
HWY_INLINE hn::Vec<Both> lower_halves(WordVector first, WordVector second) {
  return hn::ConcatEven(Both(), hn::BitCast(Both(), second), hn::BitCast(Both(), first));
}

// Stores two vectors of masters from element i on, as master_high and master_low.
template <Form kForm, bool kPastCaches, typename Gradient>
HWY_INLINE void store_masters(const Streams<Gradient>& at, size_t i, FloatVector p0,
                              FloatVector p1) {
  const Both both;
  const WordVector bits0 = hn::BitCast(Words(), p0);
  const WordVector bits1 = hn::BitCast(Words(), p1);
  if constexpr (kForm == Form::kSplit) {
    hn::StoreU(lower_halves(bits0, bits1), both, at.low + i);
  } else {
    hn::StoreU(p0, Floats(), at.master + i);
    hn::StoreU(p1, Floats(), at.master + i + kLanes);
  }
  if constexpr (kForm == Form::kMaster) return;
  const WordVector half = hn::Set(Words(), 0x8000u);
  const auto high = upper_halves(hn::Add(bits0, half), hn::Add(bits1, half));
  if constexpr (kPastCaches) {
    hn::Stream(high, both, at.high + i);
  } else {
    hn::StoreU(high, both, at.high + i);
  }
}

// Two vectors whose elements alternate in memory: the even and the odd ones.
struct EvenOdd {
  FloatVector even, odd;
};

HWY_INLINE EvenOdd load_pairs(const uint16_t* bf16) {
  const WordVector bits = hn::BitCast(Words(), hn::LoadU(Both(), bf16));
  return {hn::BitCast(Floats(), hn::ShiftLeft<16>(bits)),
          hn::BitCast(Floats(), hn::And(bits, hn::Set(Words(), 0xffff0000u)))};
}
HWY_INLINE EvenOdd load_pairs(const float* from) {
  const FloatVector first = hn::LoadU(Floats(), from);
  const FloatVector second = hn::LoadU(Floats(), from + kLanes);
  return {hn::ConcatEven(Floats(), second, first), hn::ConcatOdd(Floats(), second, first)};
}

// The upper and the lower halves of all words, in memory order.
struct HalfWords {
  hn::Vec<Both> high, low;
};
// Shifts whole bytes and blends: 512-bit bit shifts share one port with AES and the divider.
HWY_INLINE HalfWords halves_of(const EvenOdd& values) {
  const Both both;
  const auto even = hn::BitCast(both, values.even);
  const auto odd = hn::BitCast(both, values.odd);
  return {hn::OddEven(odd, hn::ShiftRightBytes<2>(both, even)),
          hn::OddEven(hn::ShiftLeftBytes<2>(both, odd), even)};
}

// Returns all ones where `low` >= 0x8000, half a unit in the last place of the upper half.
HWY_INLINE hn::Vec<Both> minus_one_if_half(hn::Vec<Both> low, const VectorScalars& s) {
  const hn::RebindToSigned<Both> integers;
  return hn::BitCast(Both(), hn::MulHigh(hn::BitCast(integers, low), hn::BitCast(integers, s.one)));
}

// Compute join_master and its inverse.
HWY_INLINE EvenOdd load_split_pairs(const uint16_t* high, const uint16_t* low,
                                    const VectorScalars& s) {
  const Both both;
  const auto lows = hn::LoadU(both, low);
  const auto tops = hn::Add(hn::LoadU(both, high), minus_one_if_half(lows, s));
  return {hn::BitCast(Floats(), hn::OddEven(hn::ShiftLeftBytes<2>(both, tops), lows)),
          hn::BitCast(Floats(), hn::OddEven(tops, hn::ShiftRightBytes<2>(both, lows)))};
}
HWY_INLINE void store_split_pairs(const EvenOdd& p, uint16_t* high, uint16_t* low,
                                  const VectorScalars& s) {
  const HalfWords halves = halves_of(p);
  hn::StoreU(hn::Sub(halves.high, minus_one_if_half(halves.low, s)), Both(), high);
  hn::StoreU(halves.low, Both(), low);
}

// Computes float_to_bf16_stochastic, 16 bits at a time.
HWY_INLINE void store_bf16_stochastic(const EvenOdd& values, hn::Vec<Both> random, uint16_t* to) {
  const Both both;
  const hn::RebindToSigned<Both> integers;
  const HalfWords halves = halves_of(values);
  const auto magnitude =
      hn::BitCast(integers, hn::And(halves.high, hn::Set(both, uint16_t{0x7fff})));
  const auto may_grow = hn::RebindMask(both, hn::Lt(magnitude, hn::Set(integers, int16_t{0x7f7f})));
  const auto grows = hn::And(may_grow, hn::Gt(halves.low, random));
  const auto grown = hn::Add(halves.high, hn::Set(both, uint16_t{1}));
  hn::StoreU(hn::IfThenElse(grows, grown, halves.high), both, to);
}

// Rounds to bf16 by a carry; `even` and `odd` are the complements of the random bits. Wrong if the
// largest finite value would grow; all_below_largest_finite detects that from doubled halves.
HWY_INLINE hn::Vec<Both> halves_of_sums(const EvenOdd& values, WordVector even, WordVector odd) {
  const Both both;
  const auto first = hn::BitCast(both, hn::Add(hn::BitCast(Words(), values.even), even));
  const auto second = hn::BitCast(both, hn::Add(hn::BitCast(Words(), values.odd), odd));
  return hn::OddEven(second, hn::ShiftRightBytes<2>(both, first));
}
HWY_INLINE bool all_below_largest_finite(hn::Vec<Both> doubled) {
  const Both both;
  const auto limit = hn::Set(both, uint16_t{2 * 0x7f7f - 1});
  return hn::AllTrue(both, hn::Eq(hn::Max(doubled, limit), limit));
}

// The moments of a block between its passes, and the square roots of the second moments; vectors of
// even and of odd elements alternate.
struct WideMoments {
  alignas(64) float m[kMomentBlockElements];
  alignas(64) float v[kMomentBlockElements];
  alignas(64) float root[kFewRegisters ? kMomentBlockElements : 1];

  HWY_INLINE void store(size_t i, const EvenOdd& first, const EvenOdd& second) {
    put(m + i, first);
    put(v + i, second);
    if constexpr (kFewRegisters) put(root + i, {hn::Sqrt(second.even), hn::Sqrt(second.odd)});
  }
  HWY_INLINE EvenOdd m_at(size_t i) const { return get(m + i); }
  HWY_INLINE EvenOdd v_at(size_t i) const { return get(v + i); }
  HWY_INLINE EvenOdd root_at(size_t i) const { return get(root + i); }

 private:
  static HWY_INLINE void put(float* to, const EvenOdd& values) {
    hn::Store(values.even, Floats(), to);
    hn::Store(values.odd, Floats(), to + kLanes);
  }
  static HWY_INLINE EvenOdd get(const float* from) {
    return {hn::Load(Floats(), from), hn::Load(Floats(), from + kLanes)};
  }
};

// Runs the pass of a block that updates its parameters.
template <typename Gradient>
HWY_INLINE void update_parameters(const Streams<Gradient>& at, const VectorScalars& s,
                                  const WideMoments& wide) {
#pragma GCC unroll 1
  for (size_t i = 0; i < kMomentBlockElements; i += 2 * kLanes) {
    EvenOdd p = load_split_pairs(at.high + i, at.low + i, s);
    const EvenOdd m = wide.m_at(i);
    const EvenOdd root = wide.root_at(i);
    update_parameter_by(m.even, root.even, p.even, s);
    update_parameter_by(m.odd, root.odd, p.odd, s);
    store_split_pairs(p, at.high + i, at.low + i, s);
  }
}

#endif
}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
