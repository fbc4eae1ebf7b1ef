// The update of one step of elements in vectors: loads, formula, random bits, stores. Included once
// for each instruction set, by adamw_kernels.cpp alone. Every function gives the bits of its scalar
// twin in adamw_formula.h, number_formats.h, philox.h and moments.h.
#if defined(LONGSHORE_ADAMW_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ADAMW_VECTORS
#undef LONGSHORE_ADAMW_VECTORS
#else
#define LONGSHORE_ADAMW_VECTORS
#endif

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "offload/adamw.h"
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
constexpr size_t kStep = kMoments == MomentFormat::kInt8 ? kMomentBlockElements : 2 * kLanes;

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
  return {slice.master.data(),
          slice.high.data(),
          slice.low.data(),
          slice.exp_avg.values.data(),
          slice.exp_avg_sq.values.data(),
          slice.exp_avg.units.data(),
          slice.exp_avg_sq.units.data(),
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

// join_master.
HWY_INLINE FloatVector load_split(const uint16_t* high, const uint16_t* low) {
  const WordVector lower = load_wide(low);
  const WordVector top = hn::Sub(load_wide(high), hn::ShiftRight<15>(lower));
  return hn::BitCast(Floats(), hn::Or(hn::ShiftLeft<16>(top), lower));
}

template <Form kForm, typename Gradient>
HWY_INLINE FloatVector load_master(const Streams<Gradient>& at, size_t i) {
  if constexpr (kForm == Form::kSplit) return load_split(at.high + i, at.low + i);
  return hn::LoadU(Floats(), at.master + i);
}

// master_high.
HWY_INLINE hn::Vec<Halves> high_of(FloatVector p) {
  const WordVector bits = hn::BitCast(Words(), p);
  return hn::TruncateTo(Halves(), hn::ShiftRight<16>(hn::Add(bits, hn::Set(Words(), 0x8000u))));
}

// Two vectors of masters, from element i on.
template <Form kForm, bool kPastCaches, typename Gradient>
HWY_INLINE void store_masters(const Streams<Gradient>& at, size_t i, FloatVector p0,
                              FloatVector p1) {
  if constexpr (kForm == Form::kSplit) {
    hn::StoreU(hn::TruncateTo(Halves(), hn::BitCast(Words(), p0)), Halves(), at.low + i);
    hn::StoreU(hn::TruncateTo(Halves(), hn::BitCast(Words(), p1)), Halves(), at.low + i + kLanes);
  } else {
    hn::StoreU(p0, Floats(), at.master + i);
    hn::StoreU(p1, Floats(), at.master + i + kLanes);
  }
  if constexpr (kForm == Form::kMaster) return;
  if constexpr (kPastCaches) {
    const hn::Repartition<uint16_t, Floats> both;
    hn::Stream(hn::Combine(both, high_of(p1), high_of(p0)), both, at.high + i);
  } else {
    hn::StoreU(high_of(p0), Halves(), at.high + i);
    hn::StoreU(high_of(p1), Halves(), at.high + i + kLanes);
  }
}

// One word for each element of two vectors.
struct RandomWords {
  WordVector first, second;
};

// philox4x32 in 64-bit lanes whose upper halves are ignored: a multiplication takes the lower ones.
HWY_INLINE RandomWords random_words(const RoundingStream& stream, size_t element_of_slice) {
  const Words words;
  const Pairs pairs;
  const auto as_words = [&](auto v) { return hn::BitCast(words, v); };
  constexpr uint64_t kCalls = kLanes / 2;
  const uint64_t call = (stream.first_element + element_of_slice) / 4;
  // Lane 2k makes the words of call k and lane 2k + 1 those of call k + kCalls / 2, so that
  // interleaving leaves elements in order.
  const auto lane = hn::Iota(pairs, uint64_t{0});
  const auto odd = hn::And(lane, hn::Set(pairs, uint64_t{1}));
  const auto place = hn::Add(
      hn::ShiftRight<1>(lane),
      hn::IfThenElseZero(hn::Eq(odd, hn::Set(pairs, uint64_t{1})), hn::Set(pairs, kCalls / 2)));
  auto c0 = hn::Add(hn::Set(pairs, call & 0xffffffffu), place);
  auto c1 = hn::Set(pairs, call >> 32);
  auto c2 = hn::Set(pairs, stream.update & 0xffffffffu);
  auto c3 = hn::Set(pairs, stream.update >> 32);
  uint32_t key_low = stream.key.low;
  uint32_t key_high = stream.key.high;
  const WordVector multiplier0 = hn::Set(words, 0xD2511F53u);
  const WordVector multiplier1 = hn::Set(words, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    const auto product0 = hn::MulEven(as_words(c0), multiplier0);
    const auto product1 = hn::MulEven(as_words(c2), multiplier1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(pairs, uint64_t{key_low}));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(pairs, uint64_t{key_high}));
    c1 = product1;
    c3 = product0;
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  const auto join = [&](auto even, auto odd_word) {
    const auto shifted = hn::ShiftLeft<32>(odd_word);
    return hn::BitCast(pairs, hn::OddEven(as_words(shifted), as_words(even)));
  };
  const auto words01 = join(c0, c1);
  const auto words23 = join(c2, c3);
  return {as_words(hn::InterleaveLower(pairs, words01, words23)),
          as_words(hn::InterleaveUpper(pairs, words01, words23))};
}

// float_to_bf16_stochastic; `random16` has no bits above its lower 16.
HWY_INLINE void store_bf16_stochastic(FloatVector value, WordVector random16, uint16_t* to) {
  const Words words;
  const WordVector bits = hn::BitCast(words, value);
  const WordVector magnitude = hn::And(bits, hn::Set(words, 0x7fffffffu));
  const WordVector largest = hn::Set(words, 0x7f7fffffu);
  const WordVector sum = hn::Min(hn::Add(magnitude, random16), largest);
  const WordVector rounded = hn::IfThenElse(hn::Gt(magnitude, largest), magnitude, sum);
  const WordVector sign = hn::And(bits, hn::Set(words, 0x80000000u));
  hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(hn::Or(rounded, sign))), Halves(), to);
}

HWY_INLINE WordVector lower_half(WordVector word) {
  return hn::And(word, hn::Set(Words(), 0xffffu));
}

// decode_magnitude.
HWY_INLINE FloatVector decode(const MomentCurve& curve, WordVector code, FloatVector unit) {
  const WordVector bits =
      hn::Add(hn::ShiftLeft<kMomentCodeShift>(code), hn::Set(Words(), curve.base_bits));
  return hn::Mul(hn::Sub(hn::BitCast(Floats(), bits), hn::Set(Floats(), curve.offset)), unit);
}

// encode_magnitude.
HWY_INLINE WordVector encode(const MomentCurve& curve, FloatVector magnitude, FloatVector inverse,
                             WordVector random16) {
  const Words words;
  const FloatVector y = hn::MulAdd(magnitude, inverse, hn::Set(Floats(), curve.offset));
  const WordVector offset = hn::Set(words, 4u - curve.base_bits);
  const WordVector bits =
      hn::Add(hn::Add(hn::BitCast(words, y), hn::ShiftLeft<3>(random16)), offset);
  return hn::Min(hn::ShiftRight<kMomentCodeShift>(bits), hn::Set(words, curve.last_code));
}

HWY_INLINE FloatVector load_first_moment(const uint8_t* from, FloatVector unit) {
  const Words words;
  const WordVector code = hn::PromoteTo(words, hn::LoadU(Codes(), from));
  const FloatVector magnitude =
      decode(kFirstMomentCurve, hn::And(code, hn::Set(words, 0x7fu)), unit);
  const WordVector sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(words, 0x80u)));
  return hn::Or(magnitude, hn::BitCast(Floats(), sign));
}

HWY_INLINE FloatVector load_second_moment(const uint8_t* from, FloatVector unit) {
  return decode(kSecondMomentCurve, hn::PromoteTo(Words(), hn::LoadU(Codes(), from)), unit);
}

HWY_INLINE void store_first_moment(FloatVector m, FloatVector inverse, WordVector random16,
                                   uint8_t* to) {
  const WordVector sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(hn::BitCast(Words(), m)));
  const WordVector code = encode(kFirstMomentCurve, hn::Abs(m), inverse, random16);
  hn::StoreU(hn::TruncateTo(Codes(), hn::Or(code, sign)), Codes(), to);
}

HWY_INLINE void store_second_moment(FloatVector v, FloatVector inverse, WordVector random16,
                                    uint8_t* to) {
  const Words words;
  const WordVector code = encode(kSecondMomentCurve, v, inverse, random16);
  const auto positive = hn::RebindMask(words, hn::Gt(v, hn::Zero(Floats())));
  const WordVector least = hn::IfThenElseZero(positive, hn::Set(words, 1u));
  hn::StoreU(hn::TruncateTo(Codes(), hn::Max(code, least)), Codes(), to);
}

// Two vectors with fp32 or bf16 moments.
template <Form kForm, typename Gradient, MomentFormat kMoments, bool kPastCaches>
HWY_INLINE void step_plain(const Streams<Gradient>& at, const VectorScalars& s,
                           const RoundingStream& rounding, size_t element_of_slice) {
  using Stored = MomentType<kMoments>;
  auto* m_at = reinterpret_cast<Stored*>(at.m);
  auto* v_at = reinterpret_cast<Stored*>(at.v);
  FloatVector m0 = load_float(m_at);
  FloatVector m1 = load_float(m_at + kLanes);
  FloatVector v0 = load_float(v_at);
  FloatVector v1 = load_float(v_at + kLanes);
  FloatVector p0 = load_master<kForm>(at, 0);
  FloatVector p1 = load_master<kForm>(at, kLanes);
  update(load_float(at.gradient), m0, v0, p0, s);
  update(load_float(at.gradient + kLanes), m1, v1, p1, s);
  if constexpr (kMoments == MomentFormat::kBF16) {
    const RandomWords random = random_words(rounding, element_of_slice);
    store_bf16_stochastic(m0, lower_half(random.first), m_at);
    store_bf16_stochastic(m1, lower_half(random.second), m_at + kLanes);
    store_bf16_stochastic(v0, hn::ShiftRight<16>(random.first), v_at);
    store_bf16_stochastic(v1, hn::ShiftRight<16>(random.second), v_at + kLanes);
  } else {
    hn::StoreU(m0, Floats(), m_at);
    hn::StoreU(m1, Floats(), m_at + kLanes);
    hn::StoreU(v0, Floats(), v_at);
    hn::StoreU(v1, Floats(), v_at + kLanes);
  }
  store_masters<kForm, kPastCaches>(at, 0, p0, p1);
}

// A block of 8-bit moments: its units are known only when all of it is updated.
template <typename Gradient>
HWY_INLINE void step_int8(const Streams<Gradient>& at, const VectorScalars& s,
                          const RoundingStream& rounding, size_t element_of_slice) {
  const Floats floats;
  auto* m_at = reinterpret_cast<uint8_t*>(at.m);
  auto* v_at = reinterpret_cast<uint8_t*>(at.v);
  alignas(64) float m_new[kMomentBlockElements];
  alignas(64) float v_new[kMomentBlockElements];
  const FloatVector m_unit = hn::Set(floats, *at.m_units);
  const FloatVector v_unit = hn::Set(floats, *at.v_units);
  FloatVector m_largest = hn::Zero(floats);
  FloatVector v_largest = hn::Zero(floats);
  const auto one = [&](size_t i, FloatVector& p) {
    FloatVector m = load_first_moment(m_at + i, m_unit);
    FloatVector v = load_second_moment(v_at + i, v_unit);
    update(load_float(at.gradient + i), m, v, p, s);
    hn::Store(m, floats, m_new + i);
    hn::Store(v, floats, v_new + i);
    m_largest = hn::Max(m_largest, hn::Abs(m));
    v_largest = hn::Max(v_largest, v);
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
  for (size_t i = 0; i < kMomentBlockElements; i += 2 * kLanes) {
    const RandomWords random = random_words(rounding, element_of_slice + i);
    const auto store = [&](size_t j, WordVector word) {
      store_first_moment(hn::Load(floats, m_new + j), m_inverse, lower_half(word), m_at + j);
      store_second_moment(hn::Load(floats, v_new + j), v_inverse, hn::ShiftRight<16>(word),
                          v_at + j);
    };
    store(i, random.first);
    store(i + kLanes, random.second);
  }
}

template <Form kForm, typename Gradient, MomentFormat kMoments, bool kPastCaches>
HWY_INLINE void step(const Streams<Gradient>& at, const VectorScalars& s,
                     const RoundingStream& rounding, size_t element_of_slice) {
  if constexpr (kMoments == MomentFormat::kInt8) {
    step_int8(at, s, rounding, element_of_slice);
  } else {
    step_plain<kForm, Gradient, kMoments, kPastCaches>(at, s, rounding, element_of_slice);
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
    if (kMoments == MomentFormat::kInt8) m_unit_ = *at.m_units;
    if (kMoments == MomentFormat::kInt8) v_unit_ = *at.v_units;
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
    if (kMoments == MomentFormat::kInt8) *at.m_units = m_unit_;
    if (kMoments == MomentFormat::kInt8) *at.v_units = v_unit_;
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
