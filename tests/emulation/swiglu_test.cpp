// The GPU's SwiGLU, emulated on the host, gives the reference's bits.
#include "kernels/swiglu.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

template <typename T>
class EmulatedSwiglu : public testing::Test {
 protected:
  static void compare(int64_t elements) {
    const auto gate = random_values<T>(elements, 1, 4.0f), up = random_values<T>(elements, 2);
    const auto grad = random_values<T>(elements, 3);
    std::vector<T> expected(gate.size());
    kernels::swiglu_cpu(kDTypeOf<T>, elements, gate.data(), up.data(), expected.data());
    Operand<T> g("gate", gate), u("up", up), out("y", gate.size()), upper("grad", grad);
    kernels::swiglu_cuda(kDTypeOf<T>, elements, g.data(), u.data(), out.data(), nullptr);
    EXPECT_TRUE(same_bits(out.values(), expected)) << elements;

    auto expected_gate = gate, expected_up = up;
    kernels::swiglu_backward_cpu(kDTypeOf<T>, elements, grad.data(), expected_gate.data(),
                                 expected_up.data());
    kernels::swiglu_backward_cuda(kDTypeOf<T>, elements, upper.data(), g.data(), u.data(), nullptr);
    EXPECT_TRUE(same_bits(g.values(), expected_gate)) << elements;
    EXPECT_TRUE(same_bits(u.values(), expected_up)) << elements;
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedSwiglu, Types);

// Goal: 230 lengths give the reference's bits: all tails of 16 bytes and of a block, random ones.
TYPED_TEST(EmulatedSwiglu, GivesTheReferencesBits) {
  for (int64_t elements = 1; elements <= 80; ++elements) this->compare(elements);
  for (const int64_t around : {256, 1024, 2048, 4096}) {
    for (int64_t elements = around - 10; elements < around + 15; ++elements) {
      this->compare(elements);
    }
  }
  for (const int64_t elements : random_numbers(50, 20'000, 7)) this->compare(elements + 1);
}

// Operands that are not aligned are refused.
TYPED_TEST(EmulatedSwiglu, RefusesWhatIsNotAligned) {
  auto* const odd = reinterpret_cast<char*>(sizeof(TypeParam));
  EXPECT_THROW(kernels::swiglu_cuda(kDTypeOf<TypeParam>, 8, odd, odd, odd, nullptr), CheckFailure);
}

}  // namespace
}  // namespace longshore::emulation
