// The CPU's cross entropy is that of plain loops in double, at every width and instruction set.
#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/number_formats.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/random_values.h"

namespace longshore::kernels {
namespace {

// Returns values that bf16 has too.
std::vector<float> random_logits(int64_t count) {
  std::vector<float> values = random_values(count, 9, 20.0);
  for (float& value : values) value = bf16_to_float(float_to_bf16_nearest(value));
  return values;
}

// Goal: losses and gradients of two rows, one of them weighted, in fp32 and bf16. Exponentials are
// right to 1 unit in the last place, and a gradient in bf16 is rounded once.
TEST(CrossEntropy, IsThatOfPlainLoops) {
  for (const int64_t vocabulary : {1, 15, 16, 33, 1000, 1024, 1025, 128'256}) {
    const std::vector<float> logits = random_logits(2 * vocabulary);
    const std::vector<int64_t> targets = {vocabulary - 1, vocabulary / 2};
    const std::vector<float> row_scales = {1.0f, -0.25f};
    on_each_target([&](int64_t target) {
      SCOPED_TRACE(std::to_string(vocabulary) + hwy::TargetName(target));
      std::vector<float> wide = logits, losses(2);
      std::vector<uint16_t> narrow;
      for (const float value : logits) narrow.push_back(float_to_bf16_nearest(value));
      CrossEntropy shape{DType::kF32, 2, vocabulary, 0.5, true, row_scales.data()};
      cross_entropy_cpu(shape, wide.data(), targets.data(), losses.data());
      const std::vector<float> first = losses;
      shape.dtype = DType::kBF16;
      cross_entropy_cpu(shape, narrow.data(), targets.data(), losses.data());
      EXPECT_EQ(losses, first) << "both read the same logits";
      for (size_t row = 0; row < 2; ++row) {
        const size_t begin = row * static_cast<size_t>(vocabulary);
        double most = -1e9, sum = 0.0;
        for (size_t i = 0; i < static_cast<size_t>(vocabulary); ++i) {
          most = std::max(most, static_cast<double>(logits[begin + i]));
        }
        for (size_t i = 0; i < static_cast<size_t>(vocabulary); ++i) {
          sum += std::exp(logits[begin + i] - most);
        }
        const auto wanted = static_cast<size_t>(targets[row]);
        EXPECT_NEAR(losses[row], std::log(sum) + most - logits[begin + wanted], 4e-6);
        for (size_t i = 0; i < static_cast<size_t>(vocabulary); ++i) {
          const double probability = std::exp(logits[begin + i] - most) / sum;
          const double grad = (probability - (i == wanted ? 1.0 : 0.0)) * 0.5 * row_scales[row];
          ASSERT_NEAR(wide[begin + i], grad, 1e-6 * std::abs(grad) + 1e-7) << i;
          ASSERT_NEAR(bf16_to_float(narrow[begin + i]), grad, 0.004 * std::abs(grad) + 1e-7) << i;
        }
      }
    });
  }
}

// Goal: without a gradient the logits stay, and a NaN anywhere in a row makes its loss one.
TEST(CrossEntropy, SeesNansAndLeavesLogits) {
  for (const size_t place : {size_t{0}, size_t{20}, size_t{39}}) {
    std::vector<float> logits = random_logits(40);
    logits[place] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> before = logits;
    const int64_t target = 5;
    float loss = 0.0f;
    cross_entropy_cpu({DType::kF32, 1, 40, 1.0, false, nullptr}, logits.data(), &target, &loss);
    EXPECT_TRUE(std::isnan(loss)) << place;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (i == place) continue;
      EXPECT_EQ(logits[i], before[i]) << i;
    }
  }
}

}  // namespace
}  // namespace longshore::kernels
