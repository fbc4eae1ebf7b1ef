#include "kernels/rotary.h"

#include <numbers>

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotary.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

using Doubles = hn::CappedTag<double, 8>;
using DoubleVector = hn::Vec<Doubles>;
using Narrow = hn::Rebind<float, Doubles>;
constexpr int64_t kDoubles = hn::MaxLanes(Doubles());

// Returns the sum of coefficients times powers of z; the last one is the constant.
template <typename... Coefficients>
HWY_INLINE DoubleVector polynomial(DoubleVector z, double highest, Coefficients... others) {
  DoubleVector sum = hn::Set(Doubles(), highest);
  ((sum = hn::Add(hn::Mul(sum, z), hn::Set(Doubles(), others))), ...);
  return sum;
}

constexpr double over_factorial(int n) {
  return n < 2 ? 1.0 : over_factorial(n - 1) / n;
}

// Writes sine and cosine of the angles to 0.501 units in the last place. Angles reach the length of
// a document, where functions in fp32 have lost the period, so this computes in fp64.
HWY_INLINE void sine_and_cosine(const float* angles, float* sines, float* cosines) {
  const Doubles d;
  const hn::RebindToUnsigned<Doubles> words;
  constexpr double kHalfPi = std::numbers::pi / 2.0;
  constexpr double kMost = 0x1.921fb544p+0;  // of kHalfPi, 33 bits: its product with n is exact
  constexpr double kRest = 0x1.0b4611a626331p-34;
  static_assert(kMost + kRest == kHalfPi);
  const DoubleVector angle = hn::PromoteTo(d, hn::LoadU(Narrow(), angles));
  // Adding 1.5 * 2^52 rounds to an integer n, which is then in the lower bits.
  const DoubleVector magic = hn::Set(d, 0x1.8p52);
  const DoubleVector shifted = hn::Add(hn::Mul(angle, hn::Set(d, 1.0 / kHalfPi)), magic);
  const DoubleVector n = hn::Sub(shifted, magic);
  DoubleVector r = hn::Sub(angle, hn::Mul(n, hn::Set(d, kMost)));
  r = hn::Sub(r, hn::Mul(n, hn::Set(d, kRest)));
  const DoubleVector z = hn::Mul(r, r);
  const DoubleVector sine =
      hn::Mul(r, polynomial(z, -over_factorial(11), over_factorial(9), -over_factorial(7),
                            over_factorial(5), -over_factorial(3), 1.0));
  const DoubleVector cosine =
      polynomial(z, over_factorial(12), -over_factorial(10), over_factorial(8), -over_factorial(6),
                 over_factorial(4), -0.5, 1.0);
  // n counts quarter turns: odd ones exchange sine and cosine, and two of them change the sign.
  const auto quarter = hn::BitCast(words, shifted);
  const auto one = hn::Set(words, 1u), two = hn::Set(words, 2u);
  const auto odd = hn::RebindMask(d, hn::Eq(hn::And(quarter, one), one));
  const auto sine_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(quarter, two)));
  const auto cosine_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(hn::Add(quarter, one), two)));
  const DoubleVector of_sine = hn::Xor(hn::IfThenElse(odd, cosine, sine), sine_sign);
  const DoubleVector of_cosine = hn::Xor(hn::IfThenElse(odd, sine, cosine), cosine_sign);
  hn::StoreU(hn::DemoteTo(Narrow(), of_sine), Narrow(), sines);
  hn::StoreU(hn::DemoteTo(Narrow(), of_cosine), Narrow(), cosines);
}

// The factors of some pairs of a row.
constexpr int64_t kMostPairs = 128;
struct Turns {
  float cosines[kMostPairs];
  float sines[kMostPairs];

  // Fills whole groups; those of missing pairs are not used.
  template <typename T>
  void fill(const Rotary& shape, float position, const float* frequencies, int64_t count) {
    const Group scale = all(shape.scale), direction = all(static_cast<float>(shape.direction));
    for (int64_t i = 0; i < count; i += kGroup) {
      float angles[kGroup];
      store(all(position) * load(frequencies + i, count - i), angles);
      for (int64_t at = 0; at < kGroup; at += kDoubles) {
        sine_and_cosine(angles + at, sines + i + at, cosines + i + at);
      }
      store(rounded<T>(load(cosines + i) * scale), cosines + i);
      store(rounded<T>(load(sines + i) * scale) * direction, sines + i);
    }
  }
};

template <typename T>
HWY_INLINE void turn(Group& a, Group& b, const Group& cosine, const Group& sine) {
  const Group first = rounded<T>(a * cosine) - rounded<T>(b * sine);
  b = rounded<T>(b * cosine) + rounded<T>(a * sine);
  a = first;
}

// Rotates `count` pairs, the first ones of `one` and `other`.
template <typename T>
HWY_INLINE void turn_halves(const Turns& turns, int64_t count, const T* one, const T* other,
                            T* one_out, T* other_out) {
  for (int64_t i = 0; i < count; i += kGroup) {
    const int64_t left = count - i;
    Group a = load(one + i, left), b = load(other + i, left);
    turn<T>(a, b, load(turns.cosines + i), load(turns.sines + i));
    store(a, one_out + i, left);
    store(b, other_out + i, left);
  }
}

// Rotates `count` pairs of neighbours.
template <typename T>
HWY_INLINE void turn_neighbours(const Turns& turns, int64_t count, const T* in, T* out) {
  for (int64_t i = 0; i < count; i += kGroup) {
    const int64_t part = std::min(kGroup, count - i);
    T one[kGroup] = {}, other[kGroup] = {};
    for (int64_t pair = 0; pair < part; ++pair) {
      one[pair] = in[2 * (i + pair)];
      other[pair] = in[2 * (i + pair) + 1];
    }
    Group a = load(one), b = load(other);
    turn<T>(a, b, load(turns.cosines + i), load(turns.sines + i));
    store(a, one);
    store(b, other);
    for (int64_t pair = 0; pair < part; ++pair) {
      out[2 * (i + pair)] = one[pair];
      out[2 * (i + pair) + 1] = other[pair];
    }
  }
}

template <typename T>
void rotate(const Rotary& shape, int64_t begin, int64_t end, const T* x, const int64_t* positions,
            const float* frequencies, T* out) {
  const int64_t half = shape.turned / 2;
  const auto rest = static_cast<size_t>(shape.head_dim - shape.turned) * sizeof(T);
  Turns turns;
  for (int64_t r = begin; r < end; ++r) {
    const float* const own = frequencies + r * shape.frequency_stride;
    for (int64_t first = 0; first < half; first += kMostPairs) {
      const int64_t count = std::min(kMostPairs, half - first);
      turns.fill<T>(shape, static_cast<float>(positions[r]), own + first, count);
      for (int64_t h = 0; h < shape.heads; ++h) {
        const T* const in = x + r * shape.row_stride + h * shape.head_dim;
        T* const to = out + (r * shape.heads + h) * shape.head_dim;
        if (shape.pairs) {
          turn_neighbours(turns, count, in + 2 * first, to + 2 * first);
        } else {
          turn_halves(turns, count, in + first, in + half + first, to + first, to + half + first);
        }
        if (first == 0 && rest > 0) std::memcpy(to + shape.turned, in + shape.turned, rest);
      }
    }
  }
}

void rotary(const Rotary& shape, int64_t begin, int64_t end, const void* x,
            const int64_t* positions, const float* frequencies, void* out) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    rotate(shape, begin, end, static_cast<const T*>(x), positions, frequencies,
           static_cast<T*>(out));
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(rotary);

void rotary_cpu(const Rotary& shape, int64_t begin, int64_t end, const void* x,
                const int64_t* positions, const float* frequencies, void* out) {
  LONGSHORE_CHECK(shape.turned > 0 && shape.turned % 2 == 0 && shape.turned <= shape.head_dim)
      << shape.turned;
  HWY_DYNAMIC_DISPATCH(rotary)(shape, begin, end, x, positions, frequencies, out);
}

}  // namespace longshore::kernels
#endif
