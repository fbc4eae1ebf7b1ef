// gradient_kernels: sums in sixteen lanes of double, element i in lane i mod 16, then in a tree
// over the lanes; this order vectorises. A product of two fp32 values is exact in double, so a
// fused multiply-add gives the same bits.
#include "offload/staging/gradient_kernels.h"

#include <array>

#include "base/number_formats.h"

namespace longshore::internal {
namespace {

constexpr size_t kLanes = 16;

// `kept` is a scratch buffer of one stripe, so that cast and sum vectorise one after the other.
template <typename Keep>
[[gnu::always_inline]] inline double sum_lanes(std::span<const float> values, const Keep& keep) {
  std::array<double, kLanes> lanes{};
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    std::array<float, kLanes> kept;
    for (size_t lane = 0; lane < kLanes; ++lane) kept[lane] = keep(i + lane);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<double>(kept[lane]) * static_cast<double>(kept[lane]);
    }
  }
  for (size_t i = whole; i < values.size(); ++i) {
    const auto kept = static_cast<double>(keep(i));
    lanes[i - whole] += kept * kept;
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Computes float_to_bf16_nearest without a branch on NaN, so that it vectorises.
[[gnu::always_inline]] inline uint16_t nearest_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? 0x7fc0u : rounded);
}

[[gnu::always_inline]] inline double cast_and_sum(std::span<const float> values,
                                                  std::span<uint16_t> bf16) {
  const float* __restrict from = values.data();
  uint16_t* __restrict to = bf16.data();
  for (size_t i = 0; i < values.size(); ++i) to[i] = nearest_bf16(from[i]);
  return sum_lanes(values, [to](size_t i) { return bf16_to_float(to[i]); });
}

[[gnu::always_inline]] inline double sum(std::span<const float> values) {
  const float* from = values.data();
  return sum_lanes(values, [from](size_t i) { return from[i]; });
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma,bmi,bmi2")]] double sum_avx2(std::span<const float> values) {
  return sum(values);
}
[[gnu::target("avx2,fma,bmi,bmi2")]] double cast_and_sum_avx2(std::span<const float> values,
                                                              std::span<uint16_t> bf16) {
  return cast_and_sum(values, bf16);
}
#endif

}  // namespace

double sum_squares(SimdLevel level, std::span<const float> values) noexcept {
#if defined(__x86_64__)
  if (level >= SimdLevel::kAvx2) return sum_avx2(values);
#endif
  static_cast<void>(level);
  return sum(values);
}

double cast_and_sum_squares(SimdLevel level, std::span<const float> values,
                            std::span<uint16_t> bf16) noexcept {
#if defined(__x86_64__)
  if (level >= SimdLevel::kAvx2) return cast_and_sum_avx2(values, bf16);
#endif
  static_cast<void>(level);
  return cast_and_sum(values, bf16);
}

}  // namespace longshore::internal
