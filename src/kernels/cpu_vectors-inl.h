// cpu_vectors: groups of sixteen fp32 values, which the CPU kernels compute with. Internal to
// src/kernels; a kernel includes it once for each instruction set (Highway). Any thread.
//
// A group has sixteen values on every instruction set, and products are rounded before they are
// added. So results, sums over rows included, have the same bits whatever the width of a vector;
// only exp may differ in the last place on sets without a fused multiply-add. Rows end with an
// incomplete group, in which the values that are missing are zeros; the others have the bits that
// they have in a complete one.
#if defined(LONGSHORE_CPU_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_CPU_VECTORS
#undef LONGSHORE_CPU_VECTORS
#else
#define LONGSHORE_CPU_VECTORS
#endif

#include <hwy/highway.h>
// clang-format off
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu_values.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kGroup = 16;

using Floats = hn::CappedTag<float, kGroup>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;

// Constant, because vectors of all compiled targets have a fixed size.
constexpr int64_t kLanes = hn::MaxLanes(Floats());
constexpr int64_t kParts = kGroup / kLanes;

struct Group {
  FloatVector parts[kParts];
};

HWY_INLINE Group all(float value) {
  Group out;
  for (int64_t i = 0; i < kParts; ++i) out.parts[i] = hn::Set(Floats(), value);
  return out;
}

HWY_INLINE Group operator+(Group a, const Group& b) {
  for (int64_t i = 0; i < kParts; ++i) a.parts[i] = hn::Add(a.parts[i], b.parts[i]);
  return a;
}
HWY_INLINE Group operator-(Group a, const Group& b) {
  for (int64_t i = 0; i < kParts; ++i) a.parts[i] = hn::Sub(a.parts[i], b.parts[i]);
  return a;
}
HWY_INLINE Group operator*(Group a, const Group& b) {
  for (int64_t i = 0; i < kParts; ++i) a.parts[i] = hn::Mul(a.parts[i], b.parts[i]);
  return a;
}
HWY_INLINE Group operator/(Group a, const Group& b) {
  for (int64_t i = 0; i < kParts; ++i) a.parts[i] = hn::Div(a.parts[i], b.parts[i]);
  return a;
}

// Returns the larger of each pair of values. A NaN may be lost.
HWY_INLINE Group larger(Group a, const Group& b) {
  for (int64_t i = 0; i < kParts; ++i) a.parts[i] = hn::Max(a.parts[i], b.parts[i]);
  return a;
}

// Rounds to bf16 as float_to_bf16_nearest does; the result is the upper half of each word.
HWY_INLINE WordVector bf16_bits(FloatVector value) {
  const WordVector bits = hn::BitCast(Words(), value);
  const WordVector odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1u));
  const WordVector nearest = hn::Add(bits, hn::Add(odd, hn::Set(Words(), 0x7fffu)));
  const auto is_nan = hn::RebindMask(Words(), hn::IsNaN(value));
  return hn::IfThenElse(is_nan, hn::Set(Words(), 0x7fc00000u), nearest);
}

// Loads a complete group.
HWY_INLINE Group load(const float* from) {
  Group out;
  for (int64_t i = 0; i < kParts; ++i) out.parts[i] = hn::LoadU(Floats(), from + i * kLanes);
  return out;
}
HWY_INLINE Group load(const Bf16* from) {
  const auto* const halves = reinterpret_cast<const uint16_t*>(from);
  Group out;
  for (int64_t i = 0; i < kParts; ++i) {
    const WordVector wide = hn::PromoteTo(Words(), hn::LoadU(Halves(), halves + i * kLanes));
    out.parts[i] = hn::BitCast(Floats(), hn::ShiftLeft<16>(wide));
  }
  return out;
}

// Stores a complete group, rounded.
HWY_INLINE void store(const Group& values, float* to) {
  for (int64_t i = 0; i < kParts; ++i) hn::StoreU(values.parts[i], Floats(), to + i * kLanes);
}
HWY_INLINE void store(const Group& values, Bf16* to) {
  auto* const halves = reinterpret_cast<uint16_t*>(to);
#if HWY_TARGET == HWY_AVX2  // has no instruction that narrows one vector
  const hn::Repartition<uint16_t, Floats> both;
  const auto first = hn::BitCast(both, bf16_bits(values.parts[0]));
  const auto second = hn::BitCast(both, bf16_bits(values.parts[1]));
  hn::StoreU(hn::ConcatOdd(both, second, first), both, halves);
#else
  for (int64_t i = 0; i < kParts; ++i) {
    const WordVector bits = hn::ShiftRight<16>(bf16_bits(values.parts[i]));
    hn::StoreU(hn::TruncateTo(Halves(), bits), Halves(), halves + i * kLanes);
  }
#endif
}

// Loads a group of which `left` values are in memory, or a complete one if more are. The others
// become `missing`.
template <typename T>
HWY_INLINE Group load(const T* from, int64_t left, T missing = T{}) {
  if (left >= kGroup) return load(from);
  T values[kGroup];
  std::fill(values, values + kGroup, missing);
  std::memcpy(values, from, static_cast<size_t>(left) * sizeof(T));
  return load(values);
}
// Stores the first `left` values of a group, or all if it has no more, rounded.
template <typename T>
HWY_INLINE void store(const Group& values, T* to, int64_t left) {
  if (left >= kGroup) return store(values, to);
  T rounded[kGroup];
  store(values, rounded);
  std::memcpy(to, rounded, static_cast<size_t>(left) * sizeof(T));
}

// Returns the values after rounding to T.
template <typename T>
HWY_INLINE Group rounded(Group values) {
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    for (FloatVector& part : values.parts) {
      part = hn::BitCast(Floats(), hn::And(bf16_bits(part), hn::Set(Words(), 0xffff0000u)));
    }
  }
  return values;
}

// Returns the first `left` values of a group, or all if it has no more; the others become zeros.
HWY_INLINE Group first(Group values, int64_t left) {
  for (int64_t i = 0; left < kGroup && i < kParts; ++i) {
    const auto kept = static_cast<size_t>(std::max<int64_t>(0, left - i * kLanes));
    values.parts[i] = hn::IfThenElseZero(hn::FirstN(Floats(), kept), values.parts[i]);
  }
  return values;
}

// Returns e to each value, to 1 unit in the last place; above 104 infinity, below -104 zero.
HWY_INLINE Group exp(Group values) {
  for (FloatVector& part : values.parts) {
    // Highway's function is defined up to 104; Min and its result lose a NaN.
    const FloatVector power = hn::Exp(Floats(), hn::Min(part, hn::Set(Floats(), 104.0f)));
    part = hn::IfThenElse(hn::IsNaN(part), part, power);
  }
  return values;
}

// Returns 1 / (1 + exp(-x)) of each value.
HWY_INLINE Group sigmoid(const Group& values) {
  return all(1.0f) / (all(1.0f) + exp(all(0.0f) - values));
}

// Returns the largest value.
HWY_INLINE float largest(const Group& values) {
  float lanes[kGroup];
  store(values, lanes);
  return *std::max_element(lanes, lanes + kGroup);
}

// Returns the sum of the values, added in halves: 0 + 8, 1 + 9, ..., then 0 + 4, and so on. The sum
// over a row adds its groups first.
HWY_INLINE float sum(const Group& values) {
  float lanes[kGroup];
  store(values, lanes);
  for (int64_t half = kGroup / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE float sum_of_lanes_in_halves(Floats, FloatVector values) {
  return hn::GetLane(values);
}
#else
template <typename D, typename V>
HWY_INLINE float sum_of_lanes_in_halves(D, V values) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(values);
  } else {
    const hn::Half<D> half;
    return sum_of_lanes_in_halves(
        half, hn::Add(hn::LowerHalf(half, values), hn::UpperHalf(half, values)));
  }
}
#endif
// Returns sum(values), with the same bits, in registers.
HWY_INLINE float sum_in_halves(Group values) {
  for (int64_t half = kParts / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      values.parts[i] = hn::Add(values.parts[i], values.parts[i + half]);
    }
  }
  return sum_of_lanes_in_halves(Floats(), values.parts[0]);
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
