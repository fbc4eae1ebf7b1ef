// The drain's inner loops: cast a gradient to the drain dtype and sum the squares of what was kept.
// Pure functions; the same bits at every SIMD level. Internal to gradient_sums.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "offload/simd_level.h"

namespace longshore::internal {

// The squares of a block of at most this many elements are summed in one fixed order.
inline constexpr int64_t kNormBlockElements = 4096;

// Sum of squares in double; a NaN or an infinity makes it not finite, nothing else can.
double sum_squares(SimdLevel level, std::span<const float> values) noexcept;
// Casts to bf16, nearest even, and sums the squares of the bf16 values.
double cast_and_sum_squares(SimdLevel level, std::span<const float> values,
                            std::span<uint16_t> bf16) noexcept;

}  // namespace longshore::internal
