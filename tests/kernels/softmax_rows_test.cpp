// The softmax over blocks of scores is that of whole rows, on every instruction set.
#include "kernels/softmax_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/number_formats.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/random_values.h"

namespace longshore::kernels {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

double finished(float score, float scale, float cap) {
  const double scaled = static_cast<double>(score) * scale;
  return cap == 0.0f ? scaled : cap * std::tanh(scaled / cap);
}

struct Softmax {
  std::vector<float> weights, largest, sums, factors;
  bool operator==(const Softmax&) const = default;
};

// One row over blocks of the given widths, fp32; the weights are those of the last block.
Softmax run(const std::vector<float>& scores, const std::vector<int64_t>& widths, float cap) {
  Softmax out{{}, {kNone}, {0.0f}, {0.0f}};
  size_t begin = 0;
  for (const int64_t width : widths) {
    std::vector<float> block(scores.begin() + static_cast<int64_t>(begin),
                             scores.begin() + static_cast<int64_t>(begin) + width);
    out.weights.assign(block.size(), -1.0f);
    const VisibleColumns all{0, static_cast<int32_t>(width)};
    softmax_block({DType::kF32, 1, width, &all, 0.5f, cap}, block.data(), out.largest.data(),
                  out.sums.data(), out.factors.data(), out.weights.data());
    begin += static_cast<size_t>(width);
  }
  return out;
}

// Goal: blocks of any width give the sum of a whole row, with and without a cap. Instruction sets
// differ by the last place of an exponential at most.
TEST(SoftmaxRows, BlocksGiveTheSumOfARow) {
  const std::vector<float> scores = random_values(300, 1, 8.0);
  for (const float cap : {0.0f, 1.5f}) {
    for (const auto& widths : {std::vector<int64_t>{300}, {1, 299}, {16, 256, 28}, {37, 3, 260}}) {
      double largest = kNone, sum = 0.0;
      for (const float score : scores) largest = std::max(largest, finished(score, 0.5f, cap));
      for (const float score : scores) sum += std::exp(finished(score, 0.5f, cap) - largest);
      on_each_target([&](int64_t target) {
        const Softmax got = run(scores, widths, cap);
        EXPECT_NEAR(got.largest[0], largest, 1e-6) << hwy::TargetName(target);
        EXPECT_NEAR(got.sums[0], sum, 1e-5 * sum) << hwy::TargetName(target);
        for (size_t i = 0; i < got.weights.size(); ++i) {
          const float score = scores[scores.size() - got.weights.size() + i];
          EXPECT_NEAR(got.weights[i], std::exp(finished(score, 0.5f, cap) - largest), 2e-6);
        }
      });
    }
  }
}

// Goal: columns that a row does not see have no weight and no gradient, and a row that sees none
// keeps what it has.
TEST(SoftmaxRows, HiddenColumnsHaveNoWeight) {
  const std::vector<VisibleColumns> visible = {{0, 1}, {3, 20}, {0, 0}, {20, 40}};
  std::vector<float> scores = random_values(160, 2, 8.0);
  const std::vector<float> upper = random_values(160, 3, 8.0), raw = scores;
  std::vector<float> largest = {kNone, kNone, 0.25f, kNone}, sums = {0.0f, 0.0f, 2.0f, 0.0f};
  std::vector<float> factors(4, 0.0f);
  std::vector<uint16_t> weights(160, 1), grads(160, 1);
  const ScoreBlock block{DType::kBF16, 4, 40, visible.data(), 1.0f, 0.0f};
  softmax_block(block, scores.data(), largest.data(), sums.data(), factors.data(), weights.data());
  EXPECT_EQ(factors[2], 1.0f);
  EXPECT_EQ(largest[2], 0.25f);
  EXPECT_EQ(sums[2], 2.0f);
  EXPECT_EQ(factors[0], 0.0f) << "nothing was seen before";
  const std::vector<float> log_sums(4, 1.0f), along(4, 0.5f);
  std::vector<uint16_t> again(160, 1);
  softmax_block_backward(block, raw.data(), upper.data(), log_sums.data(), along.data(),
                         again.data(), grads.data());
  for (size_t row = 0; row < 4; ++row) {
    for (size_t i = 0; i < 40; ++i) {
      const size_t at = row * 40 + i;
      const auto column = static_cast<int32_t>(i);
      if (column < visible[row].first || column >= visible[row].end) {
        EXPECT_EQ(weights[at], 0) << row << " " << i;
        EXPECT_EQ(again[at], 0) << row << " " << i;
        EXPECT_EQ(grads[at], 0) << row << " " << i;
        continue;
      }
      const double weight = std::exp(static_cast<double>(raw[at]) - 1.0);
      EXPECT_NEAR(bf16_to_float(again[at]), weight, 0.005 * weight);
      const double grad = weight * (static_cast<double>(upper[at]) - 0.5);
      EXPECT_NEAR(bf16_to_float(grads[at]), grad, 0.005 * std::abs(grad) + 1e-6);
    }
  }
}

// Goal: a score that is not a number is seen in the weights and in the sum, with a cap too.
TEST(SoftmaxRows, NansAreSeen) {
  for (const float cap : {0.0f, 2.0f}) {
    for (const size_t place : {size_t{0}, size_t{17}}) {
      std::vector<float> scores = random_values(20, 4, 8.0);
      scores[place] = std::numeric_limits<float>::quiet_NaN();
      const Softmax got = run(scores, {20}, cap);
      EXPECT_TRUE(std::isnan(got.sums[0])) << cap;
      EXPECT_TRUE(std::isnan(got.weights[place])) << cap;
    }
  }
}

}  // namespace
}  // namespace longshore::kernels
