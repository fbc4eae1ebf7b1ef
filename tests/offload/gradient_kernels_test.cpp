// The loops of the gradient offload give the bits of plain loops at every SIMD level and length.
#include "offload/staging/gradient_kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <limits>

#include "base/number_formats.h"
#include "tests/offload/adamw_slices.h"

namespace longshore {
namespace {

// Sums in the order that the kernels document: sixteen lanes, then a tree.
double plain_sum(const std::vector<float>& values) {
  std::array<double, 16> lanes{};
  for (size_t i = 0; i < values.size(); ++i) {
    lanes[i % 16] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Cast and sum give the same bits at every SIMD level and length.
TEST(GradientKernels, CastAndSumInTheSameBitsAtEverySimdLevelAndLength) {
  for (size_t count = 0; count <= 4096; count += count < 70 ? 1 : 671) {
    std::vector<float> values = fakes::random_values(count, static_cast<uint32_t>(count));
    std::vector<float> rounded;
    for (float value : values) rounded.push_back(bf16_to_float(float_to_bf16_nearest(value)));
    for (SimdLevel level : kSimdLevels) {
      if (!cpu_has(level)) continue;
      std::vector<uint16_t> bf16(count);
      ASSERT_EQ(internal::sum_squares(level, values), plain_sum(values)) << count;
      ASSERT_EQ(internal::cast_and_sum_squares(level, values, bf16), plain_sum(rounded)) << count;
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(bf16[i], float_to_bf16_nearest(values[i]));
    }
  }
}

// Ties, overflow and NaN round like the scalar cast.
TEST(GradientKernels, RoundTiesOverflowAndNanAsTheScalarCastDoes) {
  std::vector<float> values;
  for (uint32_t bits : {0x3f808000u, 0x3f818000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u,
                        0x7f800001u, 0xffffffffu, 0x00000001u, 0x80000000u}) {
    values.insert(values.end(), 7, std::bit_cast<float>(bits));
  }
  for (SimdLevel level : {SimdLevel::kBaseline, best_simd_level()}) {
    std::vector<uint16_t> bf16(values.size());
    internal::cast_and_sum_squares(level, values, bf16);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(bf16[i], float_to_bf16_nearest(values[i])) << i;
    }
  }
}

}  // namespace
}  // namespace longshore
