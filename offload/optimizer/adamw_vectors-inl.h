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

#include "offload/optimizer/adamw.h"
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

// One word for each element of two vectors.
struct RandomWords {
  WordVector first, second;
};

// random_word for two vectors of elements at a time: philox4x32 in 64-bit lanes whose upper halves
// are ignored, because a multiplication takes the lower ones. What all calls of a slice share is
// computed once: half of the first round, and of the second.
class RandomSource {
 public:
  explicit RandomSource(const RoundingStream& stream) : stream_(stream) {
    uint32_t low = stream.key.low;
    uint32_t high = stream.key.high;
    for (Keys& keys : keys_) {
      keys = {low, high};
      low += 0x9E3779B9u;
      high += 0xBB67AE85u;
    }
    share(stream.first_element / 4 >> 32);
  }

  // For four vectors: two chains of rounds side by side, because one waits for itself.
  HWY_INLINE void words(size_t element_of_slice, RandomWords (&out)[2]) {
    Counters first = after_two_rounds(element_of_slice);
    Counters second = after_two_rounds(element_of_slice + 2 * kLanes);
    for (int round = 2; round < kRounds; ++round) {
      first = after_round(first, keys_[round]);
      second = after_round(second, keys_[round]);
    }
    out[0] = in_order(first);
    out[1] = in_order(second);
  }

 private:
  using PairVector = hn::Vec<Pairs>;
  struct Keys {
    uint64_t low, high;
  };
  struct Counters {
    PairVector c0, c1, c2, c3;
  };
  static constexpr int kRounds = 10;
  static constexpr uint32_t kMultiplier0 = 0xD2511F53u;
  static constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;

  // What rounds one and two make of the counter's upper three words.
  void share(uint64_t call_high) {
    call_high_ = call_high;
    const uint64_t product1 = uint64_t{kMultiplier1} * (stream_.update & 0xffffffffu);
    const uint64_t c0 = (product1 >> 32 ^ call_high ^ keys_[0].low) & 0xffffffffu;
    const uint64_t product0 = uint64_t{kMultiplier0} * c0;
    first_c2_ = stream_.update >> 32 ^ keys_[0].high;
    second_c0_ = (product1 & 0xffffffffu) ^ keys_[1].low;
    second_c2_ = product0 >> 32 ^ keys_[1].high;
    second_c3_ = product0 & 0xffffffffu;
  }

  HWY_INLINE Counters after_two_rounds(size_t element_of_slice) {
    const Pairs pairs;
    const uint64_t call = (stream_.first_element + element_of_slice) / 4;
    if (HWY_UNLIKELY(call >> 32 != call_high_)) share(call >> 32);
    // Lane 2k makes the words of call k and lane 2k + 1 those of call k + kCalls / 2, so that
    // interleaving leaves elements in order.
    constexpr uint64_t kCalls = kLanes / 2;
    const auto lane = hn::Iota(pairs, uint64_t{0});
    const auto odd = hn::And(lane, hn::Set(pairs, uint64_t{1}));
    const auto place = hn::Add(
        hn::ShiftRight<1>(lane),
        hn::IfThenElseZero(hn::Eq(odd, hn::Set(pairs, uint64_t{1})), hn::Set(pairs, kCalls / 2)));
    const auto product = multiply(hn::Add(hn::Set(pairs, call & 0xffffffffu), place), kMultiplier0);
    // The second round, of which only one product differs between calls.
    const auto c2 = hn::Xor(upper_word(product), hn::Set(pairs, first_c2_));
    const auto second = multiply(c2, kMultiplier1);
    return {hn::Xor(upper_word(second), hn::Set(pairs, second_c0_)), second,
            hn::Xor(product, hn::Set(pairs, second_c2_)), hn::Set(pairs, second_c3_)};
  }

  static HWY_INLINE RandomWords in_order(const Counters& c) {
    const Pairs pairs;
    const auto words01 = join(c.c0, c.c1);
    const auto words23 = join(c.c2, c.c3);
    return {hn::BitCast(Words(), hn::InterleaveLower(pairs, words01, words23)),
            hn::BitCast(Words(), hn::InterleaveUpper(pairs, words01, words23))};
  }

  static HWY_INLINE PairVector multiply(PairVector a, uint32_t by) {
    return hn::MulEven(hn::BitCast(Words(), a), hn::Set(Words(), by));
  }

  // Moves the upper word down. A shift would wait for the port that multiplies.
  static HWY_INLINE PairVector upper_word(PairVector a) {
    return hn::BitCast(Pairs(), hn::Shuffle2301(hn::BitCast(Words(), a)));
  }

  static HWY_INLINE Counters after_round(const Counters& c, const Keys& keys) {
    const Pairs pairs;
    const PairVector product0 = multiply(c.c0, kMultiplier0);
    const PairVector product1 = multiply(c.c2, kMultiplier1);
    return {hn::Xor3(upper_word(product1), c.c1, hn::Set(pairs, keys.low)), product1,
            hn::Xor3(upper_word(product0), c.c3, hn::Set(pairs, keys.high)), product0};
  }

  // The lower halves of both, side by side.
  static HWY_INLINE PairVector join(PairVector lower, PairVector upper) {
    const Words words;
    return hn::BitCast(Pairs(), hn::OddEven(hn::BitCast(words, hn::ShiftLeft<32>(upper)),
                                            hn::BitCast(words, lower)));
  }

  RoundingStream stream_;
  Keys keys_[kRounds];
  uint64_t call_high_ = 0;
  uint64_t first_c2_ = 0;
  uint64_t second_c0_ = 0, second_c2_ = 0, second_c3_ = 0;
};

// float_to_bf16_stochastic of two vectors; the random words have no bits above their lower 16.
HWY_INLINE WordVector round_stochastically(FloatVector value, WordVector random16) {
  const Words words;
  const WordVector bits = hn::BitCast(words, value);
  const WordVector magnitude = hn::And(bits, hn::Set(words, 0x7fffffffu));
  const WordVector finite = hn::Min(hn::Add(magnitude, random16), hn::Set(words, 0x7f7fffffu));
  // Only infinity and NaN are above what a finite value was rounded to.
  const WordVector rounded = hn::Max(finite, magnitude);
  return hn::OrAnd(rounded, bits, hn::Set(words, 0x80000000u));
}
HWY_INLINE void store_bf16_stochastic(FloatVector first, FloatVector second, WordVector random0,
                                      WordVector random1, uint16_t* to) {
  hn::StoreU(
      upper_halves(round_stochastically(first, random0), round_stochastically(second, random1)),
      Both(), to);
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

// Two vectors with fp32 or bf16 moments; fp32 ones take no random words.
template <Form kForm, typename Gradient, MomentFormat kMoments, bool kPastCaches>
HWY_INLINE void step_plain(const Streams<Gradient>& at, const VectorScalars& s,
                           const RandomWords* random) {
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
    store_bf16_stochastic(m0, m1, lower_half(random->first), lower_half(random->second), m_at);
    store_bf16_stochastic(v0, v1, hn::ShiftRight<16>(random->first),
                          hn::ShiftRight<16>(random->second), v_at);
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
HWY_INLINE void step_int8(const Streams<Gradient>& at, const VectorScalars& s, RandomSource& source,
                          size_t element_of_slice) {
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
  for (size_t i = 0; i < kMomentBlockElements; i += 4 * kLanes) {
    RandomWords random[2];
    source.words(element_of_slice + i, random);
    const auto store = [&](size_t j, WordVector word) {
      store_first_moment(hn::Load(floats, m_new + j), m_inverse, lower_half(word), m_at + j);
      store_second_moment(hn::Load(floats, v_new + j), v_inverse, hn::ShiftRight<16>(word),
                          v_at + j);
    };
    store(i, random[0].first);
    store(i + kLanes, random[0].second);
    store(i + 2 * kLanes, random[1].first);
    store(i + 3 * kLanes, random[1].second);
  }
}

template <Form kForm, typename Gradient, MomentFormat kMoments, bool kPastCaches>
HWY_INLINE void step(const Streams<Gradient>& at, const VectorScalars& s, RandomSource& source,
                     size_t element_of_slice) {
  if constexpr (kMoments == MomentFormat::kInt8) {
    step_int8(at, s, source, element_of_slice);
  } else if constexpr (kMoments == MomentFormat::kBF16) {
    RandomWords random[2];
    source.words(element_of_slice, random);
    step_plain<kForm, Gradient, kMoments, kPastCaches>(at, s, &random[0]);
    step_plain<kForm, Gradient, kMoments, kPastCaches>(at.from(2 * kLanes), s, &random[1]);
  } else {
    step_plain<kForm, Gradient, kMoments, kPastCaches>(at, s, nullptr);
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
