// The GPU's rotary embedding, emulated on the host, gives the reference's bits.
#include "kernels/rotary.h"

#include <gtest/gtest.h>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::Rotary;

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
    for (int64_t i = 0; i < shape.head_dim / 2; ++i) {
      frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / 128.0f));
    }
    std::vector<T> expected(static_cast<size_t>(out_count));
    kernels::rotary_cpu(shape, x.data(), positions.data(), frequencies.data(), expected.data());
    Operand<T> in("x", x), out("out", expected.size());
    Operand<int64_t> at("positions", positions);
    Operand<float> turns("frequencies", frequencies);
    kernels::rotary_cuda(shape, in.data(), at.data(), turns.data(), out.data(), nullptr);
    EXPECT_TRUE(same_bits(out.values(), expected))
        << shape.rows << " rows, " << shape.heads << " heads of " << shape.head_dim;
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedRotary, Types);

// Goal: 240 shapes give the reference's bits in both directions, for packed and strided rows.
TYPED_TEST(EmulatedRotary, GivesTheReferencesBits) {
  for (const int64_t rows : {1, 2, 3, 9, 32}) {
    for (const int64_t heads : {1, 2, 3, 8, 9, 32}) {
      for (const int64_t head_dim : {2, 4, 6, 16, 64, 80, 96, 128}) {
        const int64_t stride = heads * head_dim + (rows % 2 == 0 ? 24 : rows == 3 ? 5 : 0);
        for (const int direction : {1, -1}) {
          this->compare({kDTypeOf<TypeParam>, rows, heads, head_dim, stride, direction});
        }
      }
    }
  }
}

using EmulatedRotaryFloat = EmulatedRotary<float>;

// Goal: rows beyond the largest grid of 2^20 blocks are taken by the first blocks.
TEST_F(EmulatedRotaryFloat, HasMoreRowsThanBlocks) {
  compare({DType::kF32, (int64_t{1} << 20) + 3, 1, 2, 2, 1});
}

}  // namespace
}  // namespace longshore::emulation
