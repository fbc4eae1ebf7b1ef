// The CPU's kernels give the same bits on every instruction set, and round as number_formats.h.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/cpu_values.h"
#include "kernels/glu.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "tests/kernels/instruction_sets.h"

namespace longshore::kernels {
namespace {

class CpuKernels : public testing::Test {
 protected:
  void TearDown() override { use_targets(0); }  // an assertion may have left a loop
};

std::vector<uint16_t> random_bf16(int64_t count, uint32_t seed) {
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox4x32({static_cast<uint32_t>(i), seed, 0, 0}, {5, 23});
    const auto value = static_cast<float>(bits[0] / 4294967296.0 * 6.0 - 3.0);
    values.push_back(float_to_bf16_nearest(value));
  }
  return values;
}

// Kernels make these of random rows. `narrow` is in bf16.
struct Results {
  std::vector<uint16_t> narrow;
  std::vector<float> sums;

  bool operator==(const Results&) const = default;
};

Results norms_and_rotations(int64_t width) {
  constexpr int64_t kRows = 5;
  const auto count = static_cast<size_t>(kRows * width);
  const auto x = random_bf16(kRows * width, 1), grad = random_bf16(kRows * width, 2);
  const auto weight = random_bf16(width, 3), bias = random_bf16(width, 4);
  Results results{.narrow = std::vector<uint16_t>(3 * count),
                  .sums = std::vector<float>(static_cast<size_t>(2 * width))};
  uint16_t* const out = results.narrow.data();
  for (const bool centred : {false, true}) {
    const Norm norm{DType::kBF16, kRows, width, 1e-6, !centred, centred};
    norm_cpu(norm, 0, kRows, x.data(), weight.data(), centred ? bias.data() : nullptr, out);
    norm_backward_cpu(norm, 0, kRows, grad.data(), x.data(), weight.data(), out + count,
                      results.sums.data(), results.sums.data() + width);
  }
  if (width % 2 != 0) return results;
  const std::vector<int64_t> positions = {0, 1, 77, 4095, 999'999};
  std::vector<float> frequencies;
  for (int64_t i = 0; i < width / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(i + 1));
  const Rotary rotary{DType::kBF16, kRows, 1, width, width, width};
  rotary_cpu(rotary, 0, kRows, x.data(), positions.data(), frequencies.data(), out + 2 * count);
  return results;
}

// Goal: norms, with their sums, and rotations do not depend on the width of a vector. Rows end
// with every number of missing values.
TEST_F(CpuKernels, GiveTheSameBitsOnEveryInstructionSet) {
  for (int64_t width = 2; width <= 50; ++width) {
    const Results expected = norms_and_rotations(width);
    on_each_target([&](int64_t target) {
      EXPECT_EQ(norms_and_rotations(width), expected) << hwy::TargetName(target) << ", " << width;
    });
  }
}

// Goal: products are rounded to bf16 to nearest even, NaN, infinities and subnormals included, on
// every instruction set: without a turn a rotation multiplies by its scale.
TEST_F(CpuKernels, RoundLikeTheScalarFunction) {
  constexpr int64_t kValues = 65536;
  std::vector<uint16_t> x(2 * kValues), out(x.size());
  for (size_t i = 0; i < kValues; ++i) x[i] = static_cast<uint16_t>(i);
  const std::vector<int64_t> positions = {0};
  const std::vector<float> frequencies(kValues);
  for (const float scale : {1.0f, 1.0078125f, 0.7109375f}) {
    Rotary shape{DType::kBF16, 1, 1, 2 * kValues, 2 * kValues, 2 * kValues};
    shape.scale = scale;
    on_each_target([&](int64_t target) {
      rotary_cpu(shape, 0, 1, x.data(), positions.data(), frequencies.data(), out.data());
      for (size_t i = 0; i < kValues; ++i) {
        const float product = bf16_to_float(float_to_bf16_nearest(bf16_to_float(x[i]) * scale));
        ASSERT_EQ(out[i], float_to_bf16_nearest(product - 0.0f))
            << hwy::TargetName(target) << ": " << i << " times " << scale;
      }
    });
  }
}

// Goal: sines and cosines of positions up to a million are those of fp64, rounded to fp32.
TEST_F(CpuKernels, TurnLongDocumentsExactly) {
  constexpr int64_t kPairs = 300;
  std::vector<float> x(2 * kPairs), frequencies(kPairs), out(2 * kPairs);
  for (size_t i = 0; i < kPairs; ++i) {
    x[i] = 1.0f;
    frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / 300.0f);
  }
  const Rotary shape{DType::kF32, 1, 1, 2 * kPairs, 2 * kPairs, 2 * kPairs};
  on_each_target([&](int64_t target) {
    for (const int64_t position : {0, 1, 2, 3, 1000, 131'071, 1'048'575}) {
      rotary_cpu(shape, 0, 1, x.data(), &position, frequencies.data(), out.data());
      for (size_t i = 0; i < kPairs; ++i) {
        const double angle = static_cast<float>(position) * frequencies[i];
        EXPECT_NEAR(out[i], std::cos(angle), 3.1e-8) << hwy::TargetName(target) << position;
        EXPECT_NEAR(out[i + kPairs], std::sin(angle), 3.1e-8) << hwy::TargetName(target);
      }
    }
  });
}

// Goal: gated units agree on every instruction set, to the last place of exp, and large values,
// infinities and NaN give what the formula gives.
TEST_F(CpuKernels, GatedUnitsTakeAnyValue) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const std::vector<float> gates = {0.0f,    -0.0f, 1.0f,  -1.0f,  20.0f,  -20.0f, 100.0f,
                                    -100.0f, 1e4f,  -1e4f, 1e10f,  inf,    nan,    1e-40f,
                                    3.5f,    -3.5f, 88.0f, -88.0f, -104.5f};
  const Glu shape{.dtype = DType::kF32, .rows = 1, .width = static_cast<int64_t>(gates.size())};
  std::vector<float> y(gates.size());
  on_each_target([&](int64_t target) {
    glu_cpu(shape, 0, 1, gates.data(), nullptr, y.data());
    for (size_t i = 0; i < gates.size(); ++i) {
      const double exact = gates[i] / (1.0 + std::exp(-static_cast<double>(gates[i])));
      if (std::isnan(exact)) {
        EXPECT_TRUE(std::isnan(y[i])) << gates[i];
      } else if (std::isinf(exact)) {
        EXPECT_EQ(y[i], exact);
      } else {
        EXPECT_NEAR(y[i], exact, 4e-7 * std::abs(exact) + 1e-37)
            << hwy::TargetName(target) << ": " << gates[i];
      }
    }
  });
}

}  // namespace
}  // namespace longshore::kernels
