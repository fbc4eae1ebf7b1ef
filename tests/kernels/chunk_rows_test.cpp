// The loops over the rows of small matrices compute what their header says.
#include "kernels/chunk_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/number_formats.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/random_values.h"

namespace longshore::kernels {
namespace {

std::vector<float> solution(int64_t size, int64_t width, bool transposed) {
  const std::vector<float> system = random_values(size * size, 1);
  std::vector<float> b = random_values(size * width, 2);
  solve_triangular(size, system.data(), transposed, width, b.data());
  return b;
}

// Goal: the solution satisfies its equations at every width of a row's end, and has the same bits
// on every instruction set.
TEST(ChunkRows, SolveTriangularSystems) {
  for (const int64_t size : {1, 2, 17, 64}) {
    for (const int64_t width : {1, 15, 16, 33, 64, 100, 128}) {
      for (const bool transposed : {false, true}) {
        const std::vector<float> x = solution(size, width, transposed);
        const std::vector<float> system = random_values(size * size, 1);
        const std::vector<float> b = random_values(size * width, 2);
        for (int64_t i = 0; i < size; ++i) {
          for (int64_t c = 0; c < width; ++c) {
            double left = x[static_cast<size_t>(i * width + c)], terms = std::abs(left);
            for (int64_t j = 0; j < size; ++j) {
              if (transposed ? j <= i : j >= i) continue;
              const double part =
                  static_cast<double>(x[static_cast<size_t>(j * width + c)]) *
                  system[static_cast<size_t>(transposed ? j * size + i : i * size + j)];
              left += part;
              terms += std::abs(part);
            }
            ASSERT_NEAR(left, b[static_cast<size_t>(i * width + c)], 1e-6 * (1.0 + terms));
          }
        }
        on_each_target([&](int64_t target) {
          EXPECT_EQ(solution(size, width, transposed), x) << hwy::TargetName(target);
        });
      }
    }
  }
}

// Goal: decays are those between a position and earlier ones, and 0 below the least.
TEST(ChunkRows, DecaysAreOfEarlierPositions) {
  const std::vector<float> sums = {-0.5f, -1.0f, -40.0f, -90.0f};
  std::vector<float> out(16, 7.0f);
  decays_between(4, sums.data(), -46.0f, out.data());
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      const float difference = sums[i] - sums[j];
      const float expected = j <= i && difference >= -46.0f ? std::exp(difference) : 0.0f;
      EXPECT_NEAR(out[i * 4 + j], expected, 1e-6f * expected) << i << ", " << j;
    }
  }
}

// Goal: rows that lie apart are read and written in both dtypes, rounded once, and what lies
// between them stays.
TEST(ChunkRows, ReadAndWriteRowsThatLieApart) {
  constexpr int64_t kRows = 3, kStride = 50;
  for (const int64_t width : {1, 16, 37}) {
    const std::vector<float> values = random_values(kRows * width, 5);
    std::vector<float> wide(kRows * kStride, 9.0f), back(values.size());
    write_rows(DType::kF32, kRows, width, values.data(), wide.data(), kStride);
    read_rows(DType::kF32, kRows, width, wide.data(), kStride, back.data());
    EXPECT_EQ(back, values);
    std::vector<uint16_t> narrow(kRows * kStride, 7);
    write_rows(DType::kBF16, kRows, width, values.data(), narrow.data(), kStride);
    read_rows(DType::kBF16, kRows, width, narrow.data(), kStride, back.data());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(back[i], bf16_to_float(float_to_bf16_nearest(values[i])));
    }
    for (size_t i = static_cast<size_t>(width); i < kStride; ++i) {
      EXPECT_EQ(wide[i], 9.0f);
      EXPECT_EQ(narrow[i], 7);
    }
  }
}

// Goal: rows of any width are scaled, added and multiplied by each other, and nothing else changes.
TEST(ChunkRows, ScaleAddAndMultiplyRows) {
  for (const int64_t width : {1, 16, 37}) {
    const std::vector<float> x = random_values(3 * width, 3), y = random_values(3 * width, 4);
    const std::vector<float> factors = {2.0f, -1.5f, 0.25f};
    std::vector<float> scaled(x.size() + 1, 9.0f), added = y, products(3);
    added.push_back(9.0f);
    scale_rows(3, width, factors.data(), x.data(), scaled.data());
    add_scaled_rows(3, width, factors.data(), x.data(), added.data());
    row_products(3, width, x.data(), y.data(), products.data());
    EXPECT_EQ(scaled.back(), 9.0f);
    EXPECT_EQ(added.back(), 9.0f);
    for (int64_t row = 0; row < 3; ++row) {
      double sum = 0.0;
      for (int64_t i = row * width; i < (row + 1) * width; ++i) {
        const auto at = static_cast<size_t>(i);
        const float part = factors[static_cast<size_t>(row)] * x[at];
        EXPECT_EQ(scaled[at], part);
        EXPECT_EQ(added[at], y[at] + part);
        sum += static_cast<double>(x[at]) * y[at];
      }
      EXPECT_NEAR(products[static_cast<size_t>(row)], sum, 1e-5);
    }
  }
}

}  // namespace
}  // namespace longshore::kernels
