// The update of one step of elements in vectors: loads, formula, random bits, stores. Included once
// for each instruction set, by adamw_kernels.cpp alone. Every function gives the bits of its scalar
// twin in adamw_formula.h, number_formats.h and moments.h.
#if defined(LONGSHORE_ADAMW_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ADAMW_VECTORS
#undef LONGSHORE_ADAMW_VECTORS
#else
#define LONGSHORE_ADAMW_VECTORS
#endif

#include <hwy/highway.h>

#include <cstring>
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
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;

// A constant, because the vectors of all compiled x86 and NEON targets have a fixed size.
constexpr size_t kLanes = hn::MaxLanes(Floats());

enum class Form { kMaster, kMasterAndParameter, kSplit };

template <MomentFormat kMoments>
using MomentType =
    std::conditional_t<kMoments == MomentFormat::kF32, float,
                       std::conditional_t<kMoments == MomentFormat::kBF16, uint16_t, uint8_t>>;

// Elements of a step of the loop.
template <MomentFormat kMoments>
constexpr size_t kStep = kMoments == MomentFormat::kInt8   ? kMomentBlockElements
                         : kMoments == MomentFormat::kBF16 ? 4 * kLanes
                                                           : 2 * kLanes;

// Bare pointers of a slice, all at the same element.
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
  // Streams that the slice lacks are null.
  template <typename T>
  static HWY_INLINE T* shifted(T* stream, size_t elements) {
    return stream == nullptr ? nullptr : stream + elements;
  }
};

template <typename Gradient>
Streams<Gradient> streams_of(const UpdateSlice& slice) {
  // An empty span may point at somebody else's memory.
  const auto start = [](auto span) { return span.empty() ? nullptr : span.data(); };
  return {start(slice.master),
          start(slice.high),
          start(slice.low),
          start(slice.exp_avg.values),
          start(slice.exp_avg_sq.values),
          start(slice.exp_avg.units),
          start(slice.exp_avg_sq.units),
          reinterpret_cast<const Gradient*>(slice.gradient.data()),
          static_cast<size_t>(width_of(slice.exp_avg.format))};
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
        eps(hn::Set(Floats(), s.eps)) {}
  FloatVector clip_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  FloatVector keep, step_size, inv_sqrt_c2, eps;
};

// adamw_element.
HWY_INLINE void update(FloatVector gradient, FloatVector& m, FloatVector& v, FloatVector& p,
                       const VectorScalars& s) {
  const FloatVector g = hn::Mul(gradient, s.clip_scale);
  m = hn::MulAdd(s.beta1, m, hn::Mul(s.one_minus_beta1, g));
  v = hn::MulAdd(s.beta2, v, hn::Mul(hn::Mul(s.one_minus_beta2, g), g));
  p = hn::Mul(p, s.keep);
  const FloatVector root = hn::Add(hn::Mul(hn::Sqrt(v), s.inv_sqrt_c2), s.eps);
  p = hn::Sub(p, hn::Div(hn::Mul(s.step_size, m), root));
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

// join_master: what the upper half has too much is the sign of the lower.
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

// Twice as many 16-bit lanes.
using Both = hn::Repartition<uint16_t, Floats>;

// The upper halves of the words of two vectors, and the lower ones.
HWY_INLINE hn::Vec<Both> upper_halves(WordVector first, WordVector second) {
  return hn::ConcatOdd(Both(), hn::BitCast(Both(), second), hn::BitCast(Both(), first));
}
HWY_INLINE hn::Vec<Both> lower_halves(WordVector first, WordVector second) {
  return hn::ConcatEven(Both(), hn::BitCast(Both(), second), hn::BitCast(Both(), first));
}

// Two vectors of masters, from element i on; master_high and master_low.
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

// Two vectors of what lies in memory as pairs: the even elements and the odd ones.
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

// The upper halves of all, in the order of memory, and the lower ones.
struct HalfWords {
  hn::Vec<Both> high, low;
};
HWY_INLINE HalfWords halves_of(const EvenOdd& values) {
  const Words words;
  const WordVector even = hn::BitCast(words, values.even);
  const WordVector odd = hn::BitCast(words, values.odd);
  return {
      hn::BitCast(Both(), hn::OrAnd(hn::ShiftRight<16>(even), odd, hn::Set(words, 0xffff0000u))),
      hn::BitCast(Both(), hn::OrAnd(hn::ShiftLeft<16>(odd), even, hn::Set(words, 0xffffu)))};
}

// All ones where the lower half is the upper half of the unit in the last place of the higher.
HWY_INLINE hn::Vec<Both> minus_one_if_half(hn::Vec<Both> low) {
  const hn::RebindToSigned<Both> integers;
  return hn::BitCast(Both(), hn::ShiftRight<15>(hn::BitCast(integers, low)));
}

// join_master and its inverse.
HWY_INLINE EvenOdd load_split_pairs(const uint16_t* high, const uint16_t* low) {
  const Words words;
  const auto lower = hn::LoadU(Both(), low);
  const WordVector tops =
      hn::BitCast(words, hn::Add(hn::LoadU(Both(), high), minus_one_if_half(lower)));
  const WordVector lows = hn::BitCast(words, lower);
  return {hn::BitCast(Floats(), hn::OrAnd(hn::ShiftLeft<16>(tops), lows, hn::Set(words, 0xffffu))),
          hn::BitCast(Floats(),
                      hn::OrAnd(hn::ShiftRight<16>(lows), tops, hn::Set(words, 0xffff0000u)))};
}
HWY_INLINE void store_split_pairs(const EvenOdd& p, uint16_t* high, uint16_t* low) {
  const HalfWords halves = halves_of(p);
  hn::StoreU(hn::Sub(halves.high, minus_one_if_half(halves.low)), Both(), high);
  hn::StoreU(halves.low, Both(), low);
}

// float_to_bf16_stochastic, 16 bits at a time.
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

// Two vectors of 32-bit integers into one of 16-bit ones, two of these into bytes: what does not
// fit becomes the nearest that does. Each 128-bit block of the result is of the same block of both.
using Shorts = hn::Repartition<int16_t, Floats>;
using Bytes8 = hn::Repartition<uint8_t, Floats>;
HWY_INLINE hn::Vec<Shorts> narrow(WordVector first, WordVector second) {
  const hn::RebindToSigned<Words> integers;
  return hn::ReorderDemote2To(Shorts(), hn::BitCast(integers, first),
                              hn::BitCast(integers, second));
}
HWY_INLINE hn::Vec<Bytes8> narrow_to_unsigned(hn::Vec<Shorts> first, hn::Vec<Shorts> second) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<Bytes8>{_mm256_packus_epi16(first.raw, second.raw)};
#elif HWY_ARCH_X86
  return hn::Vec<Bytes8>{_mm512_packus_epi16(first.raw, second.raw)};
#else
  const hn::Half<Bytes8> half;
  return hn::Combine(Bytes8(), hn::DemoteTo(half, second), hn::DemoteTo(half, first));
#endif
}
HWY_INLINE hn::Vec<Bytes8> narrow_to_signed(hn::Vec<Shorts> first, hn::Vec<Shorts> second) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<Bytes8>{_mm256_packs_epi16(first.raw, second.raw)};
#elif HWY_ARCH_X86
  return hn::Vec<Bytes8>{_mm512_packs_epi16(first.raw, second.raw)};
#else
  const hn::Rebind<int8_t, hn::Half<Bytes8>> half;
  return hn::Combine(Bytes8(), hn::BitCast(hn::Half<Bytes8>(), hn::DemoteTo(half, second)),
                     hn::BitCast(hn::Half<Bytes8>(), hn::DemoteTo(half, first)));
#endif
}

// Puts what four vectors of words were narrowed to into their order.
HWY_INLINE hn::Vec<Bytes8> in_order(hn::Vec<Bytes8> narrowed) {
  constexpr size_t kBlocks = kLanes / 4;
  if constexpr (kBlocks == 1) return narrowed;
  alignas(64) int32_t from[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    from[i] = static_cast<int32_t>(4 * (i % kBlocks) + i / kBlocks);
  }
  const auto indices = hn::SetTableIndices(Words(), from);
  return hn::BitCast(Bytes8(), hn::TableLookupLanes(hn::BitCast(Words(), narrowed), indices));
}

// decode_magnitude of codes that lie at the place of the curve's bits: (y - offset) * unit, which
// is the same as y * unit - offset * unit, because the offset is a power of two.
HWY_INLINE FloatVector decode(const MomentCurve& curve, WordVector placed, FloatVector unit,
                              FloatVector offset_unit) {
  const WordVector bits = hn::Or(placed, hn::Set(Words(), curve.base_bits));
  return hn::MulSub(hn::BitCast(Floats(), bits), unit, offset_unit);
}

struct BlockUnits {
  FloatVector m, m_offset, v, v_offset;
  BlockUnits(float m_unit, float v_unit)
      : m(hn::Set(Floats(), m_unit)),
        m_offset(hn::Set(Floats(), m_unit * kFirstMomentCurve.offset)),
        v(hn::Set(Floats(), v_unit)),
        v_offset(hn::Set(Floats(), v_unit * kSecondMomentCurve.offset)) {}
};

HWY_INLINE FloatVector load_first_moment(const uint8_t* from, const BlockUnits& units) {
  const Words words;
  const hn::RebindToSigned<Words> integers;
  const hn::RebindToSigned<Codes> codes;
  // The sign ends up in the highest bit.
  const WordVector code = hn::BitCast(
      words, hn::PromoteTo(integers, hn::LoadU(codes, reinterpret_cast<const int8_t*>(from))));
  const WordVector placed =
      hn::And(hn::ShiftLeft<kMomentCodeShift>(code), hn::Set(words, 0x7fu << kMomentCodeShift));
  const FloatVector magnitude = decode(kFirstMomentCurve, placed, units.m, units.m_offset);
  return hn::BitCast(Floats(),
                     hn::OrAnd(hn::BitCast(words, magnitude), code, hn::Set(words, 0x80000000u)));
}

HWY_INLINE FloatVector load_second_moment(const uint8_t* from, const BlockUnits& units) {
  const WordVector code = hn::PromoteTo(Words(), hn::LoadU(Codes(), from));
  return decode(kSecondMomentCurve, hn::ShiftLeft<kMomentCodeShift>(code), units.v, units.v_offset);
}

// encode_magnitude before the last code is the limit. `random`: random19 less the base's bits.
HWY_INLINE WordVector encode(const MomentCurve& curve, FloatVector magnitude, FloatVector inverse,
                             WordVector random) {
  const FloatVector y = hn::MulAdd(magnitude, inverse, hn::Set(Floats(), curve.offset));
  return hn::ShiftRight<kMomentCodeShift>(hn::Add(hn::BitCast(Words(), y), random));
}

// encode_first_moment of four vectors. Narrowing keeps signs and limits codes to 127.
HWY_INLINE void store_first_moments(const float* m, FloatVector inverse,
                                    const WordVector (&random)[4], uint8_t* to) {
  const Floats floats;
  const Words words;
  const WordVector base = hn::Set(words, 0u - kFirstMomentCurve.base_bits);
  const WordVector bits19 = hn::Set(words, 0x7ffffu);
  WordVector code[4];
  WordVector raw[4];
  for (size_t i = 0; i < 4; ++i) {
    const FloatVector value = hn::Load(floats, m + i * kLanes);
    raw[i] = hn::BitCast(words, value);
    code[i] =
        encode(kFirstMomentCurve, hn::Abs(value), inverse, hn::OrAnd(base, random[i], bits19));
  }
  const auto codes = narrow_to_signed(narrow(code[0], code[1]), narrow(code[2], code[3]));
  const auto signs = narrow_to_signed(narrow(raw[0], raw[1]), narrow(raw[2], raw[3]));
  const auto signed_codes = hn::OrAnd(codes, signs, hn::Set(Bytes8(), uint8_t{0x80}));
  hn::StoreU(in_order(signed_codes), Bytes8(), to);
}

// encode_second_moment of four vectors. Narrowing limits codes to 255.
HWY_INLINE void store_second_moments(const float* v, FloatVector inverse,
                                     const WordVector (&random)[4], uint8_t* to) {
  const Words words;
  const WordVector base = hn::Set(words, 0u - kSecondMomentCurve.base_bits);
  WordVector code[4];
  WordVector raw[4];
  for (size_t i = 0; i < 4; ++i) {
    const FloatVector value = hn::Load(Floats(), v + i * kLanes);
    raw[i] = hn::BitCast(words, value);
    code[i] =
        encode(kSecondMomentCurve, value, inverse, hn::Or(hn::ShiftRight<13>(random[i]), base));
  }
  const auto codes = narrow_to_unsigned(narrow(code[0], code[1]), narrow(code[2], code[3]));
  // What is above zero is so as an integer, and is at least 1 after narrowing too.
  const auto positive = narrow_to_unsigned(narrow(raw[0], raw[1]), narrow(raw[2], raw[3]));
  const auto least = hn::Min(positive, hn::Set(Bytes8(), uint8_t{1}));
  hn::StoreU(in_order(hn::Max(codes, least)), Bytes8(), to);
}

// Two vectors with fp32 moments.
template <Form kForm, typename Gradient, bool kPastCaches>
HWY_INLINE void step_f32(const Streams<Gradient>& at, const VectorScalars& s) {
  auto* m_at = reinterpret_cast<float*>(at.m);
  auto* v_at = reinterpret_cast<float*>(at.v);
  FloatVector m0 = load_float(m_at);
  FloatVector m1 = load_float(m_at + kLanes);
  FloatVector v0 = load_float(v_at);
  FloatVector v1 = load_float(v_at + kLanes);
  FloatVector p0 = load_master<kForm>(at, 0);
  FloatVector p1 = load_master<kForm>(at, kLanes);
  update(load_float(at.gradient), m0, v0, p0, s);
  update(load_float(at.gradient + kLanes), m1, v1, p1, s);
  hn::StoreU(m0, Floats(), m_at);
  hn::StoreU(m1, Floats(), m_at + kLanes);
  hn::StoreU(v0, Floats(), v_at);
  hn::StoreU(v1, Floats(), v_at + kLanes);
  store_masters<kForm, kPastCaches>(at, 0, p0, p1);
}

// Two vectors with bf16 moments. All state is in half words, so elements are taken in pairs.
template <typename Gradient>
HWY_INLINE void step_bf16(const Streams<Gradient>& at, const VectorScalars& s,
                          RandomSource& source) {
  auto* m_at = reinterpret_cast<uint16_t*>(at.m);
  auto* v_at = reinterpret_cast<uint16_t*>(at.v);
  const RandomSource::Halves random = source.next_halves();
  const EvenOdd gradient = load_pairs(at.gradient);
  EvenOdd m = load_pairs(m_at);
  EvenOdd v = load_pairs(v_at);
  EvenOdd p = load_split_pairs(at.high, at.low);
  update(gradient.even, m.even, v.even, p.even, s);
  update(gradient.odd, m.odd, v.odd, p.odd, s);
  store_bf16_stochastic(m, random.first, m_at);
  store_bf16_stochastic(v, random.second, v_at);
  store_split_pairs(p, at.high, at.low);
}

// A block of 8-bit moments: its units are known only when all of it is updated.
template <typename Gradient>
HWY_INLINE void step_int8(const Streams<Gradient>& at, const VectorScalars& s,
                          RandomSource& source) {
  const Floats floats;
  auto* m_at = reinterpret_cast<uint8_t*>(at.m);
  auto* v_at = reinterpret_cast<uint8_t*>(at.v);
  alignas(64) float m_new[kMomentBlockElements];
  alignas(64) float v_new[kMomentBlockElements];
  const BlockUnits units(*at.m_units, *at.v_units);
  FloatVector m_largest = hn::Zero(floats);
  FloatVector v_largest = hn::Zero(floats);
  const auto one = [&](size_t i, FloatVector& p) {
    FloatVector m = load_first_moment(m_at + i, units);
    FloatVector v = load_second_moment(v_at + i, units);
    update(load_float(at.gradient + i), m, v, p, s);
    hn::Store(m, floats, m_new + i);
    hn::Store(v, floats, v_new + i);
    m_largest = hn::Max(hn::Abs(m), m_largest);
    v_largest = hn::Max(v, v_largest);
  };
  for (size_t i = 0; i < kMomentBlockElements; i += 2 * kLanes) {
    FloatVector p0 = load_master<Form::kSplit>(at, i);
    FloatVector p1 = load_master<Form::kSplit>(at, i + kLanes);
    one(i, p0);
    one(i + kLanes, p1);
    store_masters<Form::kSplit, false>(at, i, p0, p1);
  }
  *at.m_units = moment_unit(kFirstMomentCurve, hn::GetLane(hn::MaxOfLanes(floats, m_largest)));
  *at.v_units = moment_unit(kSecondMomentCurve, hn::GetLane(hn::MaxOfLanes(floats, v_largest)));
  const FloatVector m_inverse = hn::Set(floats, 1.0f / *at.m_units);
  const FloatVector v_inverse = hn::Set(floats, 1.0f / *at.v_units);
  for (size_t i = 0; i < kMomentBlockElements; i += 4 * kLanes) {
    WordVector random[4];
    for (WordVector& words : random) words = source.next_words();
    store_first_moments(m_new + i, m_inverse, random, m_at + i);
    store_second_moments(v_new + i, v_inverse, random, v_at + i);
  }
}

template <Form kForm, typename Gradient, MomentFormat kMoments, bool kPastCaches>
HWY_INLINE void step(const Streams<Gradient>& at, const VectorScalars& s, RandomSource& source) {
  if constexpr (kMoments == MomentFormat::kInt8) {
    step_int8(at, s, source);
  } else if constexpr (kMoments == MomentFormat::kBF16) {
    step_bf16(at, s, source);
    step_bf16(at.from(2 * kLanes), s, source);
  } else {
    step_f32<kForm, Gradient, kPastCaches>(at, s);
  }
}

// A step's worth of elements of which only the first are the slice's.
template <typename Gradient, MomentFormat kMoments>
class TailBuffer {
 public:
  using At = Streams<Gradient>;
  static constexpr size_t kElements = kStep<kMoments>;
  static constexpr size_t kMomentWidth = sizeof(MomentType<kMoments>);

  void fill(const At& at, size_t count) {
    copy(master_, at.master, count);
    copy(high_, at.high, count);
    copy(low_, at.low, count);
    copy(m_, at.m, count * kMomentWidth);
    copy(v_, at.v, count * kMomentWidth);
    copy(gradient_, at.gradient, count);
    copy(&m_unit_, at.m_units, 1);
    copy(&v_unit_, at.v_units, 1);
  }
  At streams() {
    return {master_, high_, low_, m_, v_, &m_unit_, &v_unit_, gradient_, kMomentWidth};
  }
  void give_back(const At& at, size_t count) {
    copy(at.master, master_, count);
    copy(at.high, high_, count);
    copy(at.low, low_, count);
    copy(at.m, m_, count * kMomentWidth);
    copy(at.v, v_, count * kMomentWidth);
    copy(at.m_units, &m_unit_, 1);
    copy(at.v_units, &v_unit_, 1);
  }

 private:
  template <typename T>
  static void copy(T* to, const T* from, size_t count) {
    if (to != nullptr && from != nullptr) std::memcpy(to, from, count * sizeof(T));
  }

  alignas(64) float master_[kElements] = {};
  alignas(64) uint16_t high_[kElements] = {};
  alignas(64) uint16_t low_[kElements] = {};
  alignas(64) std::byte m_[kElements * kMomentWidth] = {};
  alignas(64) std::byte v_[kElements * kMomentWidth] = {};
  alignas(64) Gradient gradient_[kElements] = {};
  float m_unit_ = 0.0f;
  float v_unit_ = 0.0f;
};

#endif
}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
