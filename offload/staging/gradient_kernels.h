// gradient_kernels: the drain's inner loops, which cast a gradient to the drain dtype and sum the
// squares of the cast values. Pure functions with the same bits at every SIMD level. Internal to
// gradient_drain.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "offload/simd_level.h"

namespace longshore::internal {

// Squares of a block of at most this many elements are summed in one fixed order.
inline constexpr int64_t kNormBlockElements = 4096;

// Returns the sum of squares in double. It is not finite exactly if a value is NaN or infinite.
double sum_squares(SimdLevel level, std::span<const float> values) noexcept;
// Casts to bf16, nearest even, and returns the sum of squares of the bf16 values.
double cast_and_sum_squares(SimdLevel level, std::span<const float> values,
                            std::span<uint16_t> bf16) noexcept;

}  // namespace longshore::internal
