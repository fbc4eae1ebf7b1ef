// The GPU's rotary embedding, emulated on the host, gives the bits of its formula, and the
// CPU's agrees.
#include "kernels/rotary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::Rotary;

// The formula, one pair after another.
template <typename T>
void formula(const Rotary& shape, const std::vector<T>& x, const std::vector<int64_t>& positions,
             const std::vector<float>& frequencies, std::vector<T>& out) {
  using kernels::rounded, kernels::rounded_to, kernels::to_float;
  const int64_t half = shape.turned / 2;
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const T* const in = &x[static_cast<size_t>(r * shape.row_stride + h * shape.head_dim)];
      T* const to = &out[static_cast<size_t>((r * shape.heads + h) * shape.head_dim)];
      std::copy(in, in + shape.head_dim, to);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[static_cast<size_t>(r)]) *
                            frequencies[static_cast<size_t>(r * shape.frequency_stride + i)];
        const float cosine = rounded<T>(std::cos(angle) * shape.scale);
        const float sine =
            rounded<T>(std::sin(angle) * shape.scale) * static_cast<float>(shape.direction);
        const int64_t one = shape.pairs ? 2 * i : i, other = shape.pairs ? one + 1 : i + half;
        const float a = to_float(in[one]), b = to_float(in[other]);
        to[one] = rounded_to<T>(rounded<T>(a * cosine) - rounded<T>(b * sine));
        to[other] = rounded_to<T>(rounded<T>(b * cosine) + rounded<T>(a * sine));
      }
    }
  }
}

template <typename T>
class EmulatedRotary : public testing::Test {
 protected:
  static void compare(const Rotary& shape) {
    const int64_t out_count = shape.rows * shape.heads * shape.head_dim;
    // The operand is a view into wider rows, so the last row ends where its heads end.
    const int64_t in_count = (shape.rows - 1) * shape.row_stride + shape.heads * shape.head_dim;
    const auto x = random_values<T>(in_count, 1);
    const auto positions = random_numbers(shape.rows, 100'000, 2);
    std::vector<float> frequencies;
    const int64_t turning = shape.turned / 2;
    for (int64_t i = 0; i < turning * (shape.frequency_stride > 0 ? shape.rows : 1); ++i) {
      frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i % turning) / 128.0f) *
                            static_cast<float>(1 + i / turning));
    }
    std::vector<T> expected(static_cast<size_t>(out_count)), cpu = expected;
    formula(shape, x, positions, frequencies, expected);
    kernels::rotary_cpu(shape, 0, shape.rows, x.data(), positions.data(), frequencies.data(),
                        cpu.data());
    Operand<T> in("x", x), out("out", expected.size());
    Operand<int64_t> at("positions", positions);
    Operand<float> turns("frequencies", frequencies);
    kernels::rotary_cuda(shape, in.data(), at.data(), turns.data(), out.data(), nullptr);
    const auto name = [&] {
      return std::to_string(shape.rows) + " rows, " + std::to_string(shape.heads) + " heads of " +
             std::to_string(shape.head_dim) + ", turned " + std::to_string(shape.turned);
    };
    EXPECT_TRUE(same_bits(out.values(), expected)) << name();
    EXPECT_LE(relative_error(cpu, expected), kTolerance<T>) << name();
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedRotary, Types);

// Goal: 240 shapes give the formula's bits in both directions, for packed and strided rows.
TYPED_TEST(EmulatedRotary, GivesTheFormulasBits) {
  for (const int64_t rows : {1, 2, 3, 9, 32}) {
    for (const int64_t heads : {1, 2, 3, 8, 9, 32}) {
      for (const int64_t head_dim : {2, 4, 6, 16, 64, 80, 96, 128}) {
        const int64_t stride = heads * head_dim + (rows % 2 == 0 ? 24 : rows == 3 ? 5 : 0);
        for (const int direction : {1, -1}) {
          Rotary shape = {kDTypeOf<TypeParam>, rows, heads, head_dim, head_dim, stride};
          shape.direction = direction;
          this->compare(shape);
        }
      }
    }
  }
}

// Goal: so do pairs of neighbours, heads of which a part turns, and rows with own frequencies.
TYPED_TEST(EmulatedRotary, GivesTheFormulasBitsOfEveryKind) {
  for (const int64_t head_dim : {8, 20, 64, 300}) {
    for (const int64_t turned : {int64_t{2}, head_dim / 2, head_dim - 4, head_dim}) {
      for (const bool pairs : {false, true}) {
        for (const bool own : {false, true}) {
          Rotary shape = {kDTypeOf<TypeParam>, 5, 3, head_dim, turned, 3 * head_dim + 16};
          shape.pairs = pairs, shape.frequency_stride = own ? turned / 2 : 0, shape.scale = 1.25f;
          this->compare(shape);
        }
      }
    }
  }
}

using EmulatedRotaryFloat = EmulatedRotary<float>;

// Goal: rows beyond the largest grid of 2^20 blocks are taken by the first blocks.
TEST_F(EmulatedRotaryFloat, HasMoreRowsThanBlocks) {
  compare({DType::kF32, (int64_t{1} << 20) + 3, 1, 2, 2, 2});
}

}  // namespace
}  // namespace longshore::emulation
