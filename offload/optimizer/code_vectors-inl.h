// Vectorised update of a block of 8-bit moments, in two passes: the moments with their scales, then
// parameters and codes. Only adamw_kernels.cpp includes it, once per instruction set. Every
// function gives the bits of its scalar twin in adamw_kernels.h and moments.h.
#if defined(LONGSHORE_CODE_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_CODE_VECTORS
#undef LONGSHORE_CODE_VECTORS
#else
#define LONGSHORE_CODE_VECTORS
#endif

#include <hwy/highway.h>

#include <bit>

#include "offload/optimizer/adamw_vectors-inl.h"
#include "offload/optimizer/ars_vectors-inl.h"
#include "shard/moments.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {
#if HWY_NATIVE_FMA

namespace hn = hwy::HWY_NAMESPACE;

// Narrow two vectors of 32-bit integers to 16 bits, and two of these to bytes, with saturation.
// Each 128-bit block of the result comes from the same block of both operands.
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

// Restores element order after narrowing two pairs of vectors, whose blocks of 16 alternate.
HWY_INLINE hn::Vec<Bytes8> in_order(hn::Vec<Bytes8> narrowed) {
  constexpr size_t kBlocks = kLanes / 4;
  // A block has the even and odd elements of both pairs, four of each.
  const auto within = [](size_t i) { return i / 8 * 8 + i % 2 * 4 + i % 8 / 2; };
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  alignas(64) uint8_t from[4 * kLanes];
  for (size_t i = 0; i < 4 * kLanes; ++i) {
    const size_t eight = i / 8;
    from[i] = static_cast<uint8_t>(eight % kBlocks * 16 + within(eight / kBlocks * 8 + i % 8));
  }
  return hn::Vec<Bytes8>{_mm512_permutexvar_epi8(hn::Load(Bytes8(), from).raw, narrowed.raw)};
#else
  alignas(64) uint8_t byte_from[16];
  for (size_t i = 0; i < 16; ++i) byte_from[i] = static_cast<uint8_t>(within(i));
  const auto paired = hn::TableLookupBytes(narrowed, hn::LoadDup128(Bytes8(), byte_from));
  if constexpr (kBlocks == 1) return paired;
  alignas(64) int64_t from[kLanes / 2];
  for (size_t i = 0; i < kLanes / 2; ++i) {
    from[i] = static_cast<int64_t>(2 * (i % kBlocks) + i / kBlocks);
  }
  const auto indices = hn::SetTableIndices(Pairs(), from);
  return hn::BitCast(Bytes8(), hn::TableLookupLanes(hn::BitCast(Pairs(), paired), indices));
#endif
}

struct CurveConstants {
  explicit CurveConstants(const MomentCurve& curve)
      : base(kept(curve.base_bits)),
        less_base(kept(0u - curve.base_bits)),
        code_bits(kept(curve.last_code << kMomentCodeShift)),
        origin(hn::BitCast(Floats(), kept(std::bit_cast<uint32_t>(curve.origin)))) {}
  WordVector base, less_base, code_bits;
  FloatVector origin;
};
struct CodeConstants {
  CodeConstants()
      : first(kFirstMomentCurve),
        second(kSecondMomentCurve),
        sign(kept(0x80000000u)),
        magnitude(kept(0x7fffffffu)),
        bits19(kept(0x7ffffu)),
        byte_signs(hn::BitCast(Bytes8(), kept(0x80808080u))) {}
  CurveConstants first, second;
  WordVector sign, magnitude, bits19;
  hn::Vec<Bytes8> byte_signs;
};

// Computes decode_magnitude of a code that is shifted to the curve's bits.
HWY_INLINE FloatVector decode(const CurveConstants& curve, WordVector placed, FloatVector unit,
                              FloatVector origin_unit) {
  const WordVector bits = hn::OrAnd(curve.base, placed, curve.code_bits);
  return hn::MulSub(hn::BitCast(Floats(), bits), unit, origin_unit);
}
HWY_INLINE FloatVector with_sign_of(FloatVector magnitude, WordVector sign,
                                    const CodeConstants& c) {
  return hn::BitCast(Floats(), hn::OrAnd(hn::BitCast(Words(), magnitude), sign, c.sign));
}

// The units of a block times beta, for decoding. They are broadcast from memory, because broadcasts
// between registers use the port of shuffles.
struct BlockUnits {
  BlockUnits(const float& m_unit, const float& v_unit, const VectorScalars& s,
             const CodeConstants& c)
      : m(hn::Mul(hn::Set(Floats(), m_unit), s.beta1)),
        m_origin(hn::Mul(m, c.first.origin)),
        v(hn::Mul(hn::Set(Floats(), v_unit), s.beta2)),
        v_origin(hn::Mul(v, c.second.origin)) {}
  FloatVector m, m_origin, v, v_origin;
};

// Loads two vectors of codes as pairs of 16 bits.
HWY_INLINE EvenOdd load_first_moments(const uint8_t* from, const BlockUnits& units,
                                      const CodeConstants& c) {
  const Words words;
  const hn::RebindToSigned<Both> shorts;
  const hn::Rebind<int8_t, Both> codes;
  // The sign ends up in the highest bit.
  const WordVector pairs = hn::BitCast(
      words, hn::PromoteTo(shorts, hn::LoadU(codes, reinterpret_cast<const int8_t*>(from))));
  const WordVector even = hn::ShiftLeft<kMomentCodeShift>(pairs);
  const WordVector odd = hn::ShiftLeft<kMomentCodeShift - 16>(pairs);
  return {with_sign_of(decode(c.first, even, units.m, units.m_origin), even, c),
          with_sign_of(decode(c.first, odd, units.m, units.m_origin), pairs, c)};
}
HWY_INLINE EvenOdd load_second_moments(const uint8_t* from, const BlockUnits& units,
                                       const CodeConstants& c) {
  const hn::Rebind<uint8_t, Both> codes;
  const WordVector pairs = hn::BitCast(Words(), hn::PromoteTo(Both(), hn::LoadU(codes, from)));
  const WordVector even = hn::ShiftLeft<kMomentCodeShift>(pairs);
  const WordVector odd = hn::ShiftLeft<kMomentCodeShift - 16>(pairs);
  return {decode(c.second, even, units.v, units.v_origin),
          decode(c.second, odd, units.v, units.v_origin)};
}

// Computes encode_magnitude without the limit; `random` is random19 minus the base's bits.
HWY_INLINE WordVector encode(const CurveConstants& curve, FloatVector magnitude,
                             FloatVector inverse, WordVector random) {
  const hn::RebindToSigned<Words> integers;
  const FloatVector y = hn::MulAdd(magnitude, inverse, curve.origin);
  const auto sum = hn::BitCast(integers, hn::Add(hn::BitCast(Words(), y), random));
  return hn::BitCast(Words(), hn::ShiftRight<kMomentCodeShift>(sum));
}

// A block of 8-bit moments between its passes; its units follow from all of its moments.
struct Block {
  WideMoments wide;
  alignas(16) float inverses[4];  // of the units, alternating
};

HWY_INLINE FloatVector larger_magnitude(FloatVector value, FloatVector largest,
                                        const CodeConstants& c) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  static_cast<void>(c);
  constexpr int kLargerWithoutSign = 0b1011;
  return FloatVector{_mm512_range_ps(value.raw, largest.raw, kLargerWithoutSign)};
#else
  return hn::Max(hn::And(value, hn::BitCast(Floats(), c.magnitude)), largest);
#endif
}

// Returns the maximum over the 128-bit parts.
template <class D>
HWY_INLINE hn::Vec<hn::Full128<float>> fold(D d, hn::Vec<D> values) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return values;
  } else {
    const hn::Half<D> half;
    return fold(half, hn::Max(hn::LowerHalf(half, values), hn::UpperHalf(half, values)));
  }
}

// Returns moment_unit of the first and second moment, alternating.
HWY_INLINE hn::Vec<hn::Full128<float>> moment_units(hn::Vec<hn::Full128<float>> largest) {
  const hn::Full128<float> four;
  constexpr float kFirst = 1.0f / kFirstMomentCurve.top;
  constexpr float kSecond = 1.0f / kSecondMomentCurve.top;
  alignas(16) constexpr float kFactors[] = {kFirst, kSecond, kFirst, kSecond};
  const auto limited =
      hn::Min(hn::Max(largest, hn::Set(four, kLeastLargest)), hn::Set(four, kMostLargest));
  return hn::Mul(limited, hn::Load(four, kFactors));
}

// Runs the first pass: moments and their units. Decoding multiplies by beta.
template <typename Gradient>
HWY_INLINE void update_block_moments(const Streams<Gradient>& at, const VectorScalars& s,
                                     const CodeConstants& c, Block& block) {
  const Floats floats;
  const auto* m_at = reinterpret_cast<const uint8_t*>(at.m);
  const auto* v_at = reinterpret_cast<const uint8_t*>(at.v);
  const BlockUnits units(*at.m_units, *at.v_units, s, c);
  FloatVector m_largest = hn::Zero(floats);
  FloatVector v_largest = hn::Zero(floats);
  const auto one = [&](FloatVector gradient, FloatVector& m, FloatVector& v) {
    const FloatVector g = hn::Mul(gradient, s.clip_scale);
    m = hn::MulAdd(s.one_minus_beta1, g, m);
    v = hn::MulAdd(hn::Mul(s.one_minus_beta2, g), g, v);
    m_largest = larger_magnitude(m, m_largest, c);
    v_largest = hn::Max(v, v_largest);
  };
  for (size_t i = 0; i < kMomentBlockElements; i += 2 * kLanes) {
    const EvenOdd gradient = load_pairs(at.gradient + i);
    EvenOdd m = load_first_moments(m_at + i, units, c);
    EvenOdd v = load_second_moments(v_at + i, units, c);
    one(gradient.even, m.even, v.even);
    one(gradient.odd, m.odd, v.odd);
    block.wide.store(i, m, v);
  }
  // The lanes of both moments alternate.
  const hn::Full128<float> four;
  const auto largest = fold(floats, hn::Max(hn::InterleaveLower(floats, m_largest, v_largest),
                                            hn::InterleaveUpper(floats, m_largest, v_largest)));
  const auto unit = moment_units(hn::Max(largest, hn::Shuffle1032(largest)));
  *at.m_units = hn::GetLane(unit);
  *at.v_units = hn::ExtractLane(unit, 1);
  hn::Store(hn::Div(hn::Set(four, 1.0f), unit), four, block.inverses);
}

// Runs the last pass: codes, mixed with parameters to hide the divider's latency, or codes alone
// where registers are few.
template <typename Gradient>
HWY_INLINE void finish_block(const Streams<Gradient>& at, const VectorScalars& s,
                             const CodeConstants& c, RandomSource& source, const Block& block) {
  const Floats floats;
  source.refill();
  const FloatVector m_inverse = hn::Set(floats, block.inverses[0]);
  const FloatVector v_inverse = hn::Set(floats, block.inverses[1]);
  struct Narrowed {
    hn::Vec<Shorts> m, m_signs, v;
  };
  const auto pair = [&](size_t i) {
    const EvenOdd m = block.wide.m_at(i);
    const EvenOdd v = block.wide.v_at(i);
    EvenOdd p;
    if constexpr (!kFewRegisters) {
      p = load_split_pairs(at.high + i, at.low + i, s);
      update_parameter(m.even, v.even, p.even, s);
      update_parameter(m.odd, v.odd, p.odd, s);
    }
    // The bits that round one moment of an element round the other moment of its neighbour.
    const WordVector word = hn::BitCast(Words(), source.next(i));
    const WordVector down = hn::ShiftRight<13>(word);
    const auto magnitude = [&](FloatVector x) {
      return hn::And(x, hn::BitCast(floats, c.magnitude));
    };
    const auto low = [&](const CurveConstants& curve) {
      return hn::OrAnd(curve.less_base, word, c.bits19);
    };
    const auto high = [&](const CurveConstants& curve) { return hn::Or(curve.less_base, down); };
    const Narrowed result = {narrow(encode(c.first, magnitude(m.even), m_inverse, low(c.first)),
                                    encode(c.first, magnitude(m.odd), m_inverse, high(c.first))),
                             narrow(hn::BitCast(Words(), m.even), hn::BitCast(Words(), m.odd)),
                             narrow(encode(c.second, v.even, v_inverse, high(c.second)),
                                    encode(c.second, v.odd, v_inverse, low(c.second)))};
    if constexpr (!kFewRegisters) store_split_pairs(p, at.high + i, at.low + i, s);
    return result;
  };
  for (size_t i = 0; i < kMomentBlockElements; i += 4 * kLanes) {
    const Narrowed first = pair(i);
    const Narrowed second = pair(i + 2 * kLanes);
    // Narrowing saturates to the range of codes and keeps signs.
    const auto codes = narrow_to_signed(first.m, second.m);
    const auto signs = narrow_to_signed(first.m_signs, second.m_signs);
    const auto m = hn::OrAnd(codes, signs, c.byte_signs);
    hn::StoreU(in_order(m), Bytes8(), reinterpret_cast<uint8_t*>(at.m) + i);
    const auto v = narrow_to_unsigned(first.v, second.v);
    hn::StoreU(in_order(v), Bytes8(), reinterpret_cast<uint8_t*>(at.v) + i);
  }
}

template <typename Gradient>
HWY_INLINE void step_int8(const Streams<Gradient>& at, const VectorScalars& s,
                          const CodeConstants& c, RandomSource& source) {
  Block block;
  update_block_moments(at, s, c, block);
  if constexpr (kFewRegisters) update_parameters(at, s, block.wide);
  finish_block(at, s, c, source, block);
}

#endif
}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
