// The GPU's gated linear units, emulated on the host, give the bits of their formula, and the CPU's
// agree.
#include "kernels/glu.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::Glu;
using kernels::GluActivation;

// The formula, one element after another. Without `gated` there is no `up`.
template <typename T>
void formula(const Glu& shape, bool gated, const std::vector<T>& grad, std::vector<T>& gate,
             std::vector<T>& up, std::vector<T>& y) {
  using kernels::rounded, kernels::rounded_to, kernels::to_float;
  const bool silu = shape.activation == GluActivation::kSilu;
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = i / static_cast<size_t>(shape.width);
    const size_t column = i % static_cast<size_t>(shape.width);
    T& at_gate = gate[row * static_cast<size_t>(shape.gate_stride) + column];
    T& at_up = up[row * static_cast<size_t>(shape.up_stride) + column];
    const float g = to_float(at_gate), u = to_float(at_up), upper = to_float(grad[i]);
    const float linear = kernels::kGeluLinear, cubic = kernels::kGeluCubic;
    const float s = 1.0f / (1.0f + std::exp(-(silu ? g : g * (linear + cubic * g * g))));
    const float inner = silu ? g : g * (linear + 3.0f * cubic * g * g);
    const float slope = s * (1.0f + inner * (1.0f - s));
    y[i] = rounded_to<T>(gated ? rounded<T>(g * s) * u : g * s);
    if (gated) at_up = rounded_to<T>(upper * rounded<T>(g * s));
    at_gate = rounded_to<T>((gated ? rounded<T>(upper * u) : upper) * slope);
  }
}

template <typename T>
class EmulatedGlu : public testing::Test {
 protected:
  static void compare_row(int64_t elements) {
    compare({.dtype = kDTypeOf<T>, .rows = 1, .width = elements});
  }

  // `shift` is the place of the operands' first element.
  static void compare(const Glu& shape, bool gated = true, int64_t shift = 0) {
    const auto held = [&](int64_t stride) { return (shape.rows - 1) * stride + shape.width; };
    const auto gate = random_values<T>(held(shape.gate_stride), 1, 4.0f);
    const auto up = random_values<T>(held(shape.up_stride), 2);
    const auto grad = random_values<T>(shape.rows * shape.width, 3);
    auto wanted_gate = gate, wanted_up = up;
    std::vector<T> wanted(grad.size());
    formula(shape, gated, grad, wanted_gate, wanted_up, wanted);
    const auto shifted = [&](std::vector<T> values) {
      values.insert(values.begin(), static_cast<size_t>(shift), T{});
      return values;
    };
    const std::string name = std::to_string(shape.rows) + " rows of " +
                             std::to_string(shape.width) + ", shifted by " + std::to_string(shift);

    Operand<T> g("gate", shifted(gate)), u("up", shifted(up)), upper("grad", shifted(grad));
    Operand<T> out("y", shifted(wanted));
    T* const ups = gated ? u.data() + shift : nullptr;
    kernels::glu_cuda(shape, g.data() + shift, ups, out.data() + shift, nullptr);
    EXPECT_TRUE(same_bits(out.values(), shifted(wanted))) << name;
    kernels::glu_backward_cuda(shape, upper.data() + shift, g.data() + shift, ups, nullptr);
    EXPECT_TRUE(same_bits(g.values(), shifted(wanted_gate))) << name;
    EXPECT_TRUE(same_bits(u.values(), shifted(wanted_up))) << name;

    auto cpu_gate = gate, cpu_up = up;
    std::vector<T> cpu(grad.size());
    T* const cpu_ups = gated ? cpu_up.data() : nullptr;
    kernels::glu_cpu(shape, 0, shape.rows, cpu_gate.data(), cpu_ups, cpu.data());
    kernels::glu_backward_cpu(shape, 0, shape.rows, grad.data(), cpu_gate.data(), cpu_ups);
    EXPECT_LE(relative_error(cpu, wanted), kTolerance<T>) << name;
    EXPECT_LE(relative_error(cpu_gate, wanted_gate), kTolerance<T>) << name;
    EXPECT_LE(relative_error(cpu_up, wanted_up), kTolerance<T>) << name;
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedGlu, Types);

// Goal: 230 lengths give the formula's bits: all tails of 16 bytes and of a block, random ones.
TYPED_TEST(EmulatedGlu, GivesTheFormulasBits) {
  for (int64_t elements = 1; elements <= 80; ++elements) this->compare_row(elements);
  for (const int64_t around : {256, 1024, 2048, 4096}) {
    for (int64_t elements = around - 10; elements < around + 15; ++elements) {
      this->compare_row(elements);
    }
  }
  for (const int64_t elements : random_numbers(50, 20'000, 7)) this->compare_row(elements + 1);
}

// Goal: so do strided rows, gelu, an activation without a gate, and operands that begin anywhere.
TYPED_TEST(EmulatedGlu, GivesTheFormulasBitsOfEveryKind) {
  for (const int64_t width : {1, 7, 16, 40, 333}) {
    for (const int64_t more : {0, 3, 16, 40}) {
      for (const GluActivation activation : {GluActivation::kSilu, GluActivation::kGeluTanh}) {
        const Glu shape = {kDTypeOf<TypeParam>, activation,      5, width,
                           width + more,        width + 2 * more};
        for (const int64_t shift : {0, 1}) {
          this->compare(shape, true, shift);
          this->compare(shape, false, shift);
        }
      }
    }
  }
}

}  // namespace
}  // namespace longshore::emulation
