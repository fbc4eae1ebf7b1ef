// The GPU's SwiGLU, emulated on the host, gives the bits of its formula, and the CPU's agrees.
#include "kernels/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

// The formula, one element after another.
template <typename T>
void formula(const std::vector<T>& grad, std::vector<T>& gate, std::vector<T>& up,
             std::vector<T>& y) {
  using kernels::rounded, kernels::rounded_to, kernels::to_float;
  for (size_t i = 0; i < gate.size(); ++i) {
    const float g = to_float(gate[i]), u = to_float(up[i]), upper = to_float(grad[i]);
    const float s = 1.0f / (1.0f + std::exp(-g));
    y[i] = rounded_to<T>(rounded<T>(g * s) * u);
    up[i] = rounded_to<T>(upper * rounded<T>(g * s));
    gate[i] = rounded_to<T>(rounded<T>(upper * u) * s * (1.0f + g * (1.0f - s)));
  }
}

template <typename T>
class EmulatedSwiglu : public testing::Test {
 protected:
  static void compare(int64_t elements) {
    const auto gate = random_values<T>(elements, 1, 4.0f), up = random_values<T>(elements, 2);
    const auto grad = random_values<T>(elements, 3);
    auto wanted_gate = gate, wanted_up = up;
    std::vector<T> wanted(gate.size());
    formula(grad, wanted_gate, wanted_up, wanted);

    Operand<T> g("gate", gate), u("up", up), out("y", gate.size()), upper("grad", grad);
    kernels::swiglu_cuda(kDTypeOf<T>, elements, g.data(), u.data(), out.data(), nullptr);
    EXPECT_TRUE(same_bits(out.values(), wanted)) << elements;
    kernels::swiglu_backward_cuda(kDTypeOf<T>, elements, upper.data(), g.data(), u.data(), nullptr);
    EXPECT_TRUE(same_bits(g.values(), wanted_gate)) << elements;
    EXPECT_TRUE(same_bits(u.values(), wanted_up)) << elements;

    auto cpu_gate = gate, cpu_up = up;
    std::vector<T> cpu(gate.size());
    kernels::swiglu_cpu(kDTypeOf<T>, 0, elements, gate.data(), up.data(), cpu.data());
    kernels::swiglu_backward_cpu(kDTypeOf<T>, 0, elements, grad.data(), cpu_gate.data(),
                                 cpu_up.data());
    EXPECT_LE(relative_error(cpu, wanted), kTolerance<T>) << elements;
    EXPECT_LE(relative_error(cpu_gate, wanted_gate), kTolerance<T>) << elements;
    EXPECT_LE(relative_error(cpu_up, wanted_up), kTolerance<T>) << elements;
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedSwiglu, Types);

// Goal: 230 lengths give the formula's bits: all tails of 16 bytes and of a block, random ones.
TYPED_TEST(EmulatedSwiglu, GivesTheFormulasBits) {
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
