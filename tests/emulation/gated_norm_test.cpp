// The GPU's norms with a gate, emulated on the host, and the CPU's, against their formula.
#include "kernels/gated_norm.h"

#include <gtest/gtest.h>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::GatedNorm;
using kernels::GatedNormGradients;
using kernels::GatedNormInputs;
using kernels::GateOrder;

template <typename X, typename T>
struct Results {
  std::vector<T> y, grad_gate;
  std::vector<X> grad_x;
  std::vector<float> weight;
};

template <typename X, typename T>
struct Operands {
  GatedNorm shape;
  std::vector<X> x;
  std::vector<T> gate, weight, grad;

  explicit Operands(const GatedNorm& of)
      : shape(of),
        x(random_values<X>(of.rows * of.row_width(), 1)),
        gate(random_values<T>((of.rows - 1) * of.gate_stride + of.row_width(), 2)),
        weight(random_values<T>(of.weights(), 3)),
        grad(random_values<T>(of.rows * of.row_width(), 4)) {}
};

// The formula, one value after another; sums are in double.
template <typename X, typename T>
Results<X, T> formula(const Operands<X, T>& in) {
  using kernels::rounded, kernels::rounded_to, kernels::to_float;
  const GatedNorm& shape = in.shape;
  const bool gate_first = shape.order == GateOrder::kGateFirst;
  Results<X, T> out{std::vector<T>(in.grad.size()), std::vector<T>(in.grad.size()),
                    std::vector<X>(in.grad.size()), std::vector<float>(in.weight.size(), 0.5f)};
  for (int64_t s = 0; s < shape.rows * shape.segments; ++s) {
    const int64_t row = s / shape.segments, segment = s % shape.segments;
    struct Value {
      float x, gate, s, silu, upper, weight, value, inner;
    };
    std::vector<Value> values;
    double squares = 0.0, along = 0.0;
    for (int64_t i = 0; i < shape.width; ++i) {
      const int64_t place = segment * shape.width + i;
      Value v = {};
      v.x = to_float(in.x[s * shape.width + i]);
      v.gate = to_float(in.gate[row * shape.gate_stride + place]);
      v.upper = to_float(in.grad[s * shape.width + i]);
      v.weight = to_float(in.weight[gate_first ? place : i]);
      v.s = 1.0f / (1.0f + std::exp(-v.gate));
      v.silu = v.gate * v.s;
      v.value = gate_first ? v.x * v.silu : v.x;
      v.inner = gate_first ? v.upper : v.upper * v.silu;
      squares += double{v.value} * v.value;
      along += double{v.inner} * v.weight * v.value;
      values.push_back(v);
    }
    const auto width = static_cast<double>(shape.width);
    const auto factor = static_cast<float>(1.0 / std::sqrt(squares / width + shape.eps));
    const auto mean = static_cast<float>(along * factor / width);
    for (int64_t i = 0; i < shape.width; ++i) {
      const Value& v = values[i];
      const int64_t at = s * shape.width + i;
      const float normed = v.value * factor;
      out.y[at] = rounded_to<T>(gate_first ? normed * v.weight
                                           : v.silu * rounded<T>(rounded<T>(normed) * v.weight));
      out.weight[gate_first ? segment * shape.width + i : i] += v.inner * normed;
      const float outer = (v.inner * v.weight - normed * mean) * factor;
      const float to_gate = gate_first ? outer * v.x : v.upper * normed * v.weight;
      out.grad_x[at] = rounded_to<X>(gate_first ? outer * v.silu : outer);
      out.grad_gate[at] = rounded_to<T>(to_gate * v.s * (1.0f + v.gate * (1.0f - v.s)));
    }
  }
  return out;
}

// The kernels of the CPU, in two parts of rows and of pieces.
template <typename X, typename T>
Results<X, T> on_cpu(const Operands<X, T>& in) {
  const GatedNorm& shape = in.shape;
  const GatedNormInputs inputs{
      .x = in.x.data(), .gate = in.gate.data(), .weight = in.weight.data()};
  Results<X, T> out{std::vector<T>(in.grad.size()), std::vector<T>(in.grad.size()),
                    std::vector<X>(in.grad.size()), std::vector<float>(in.weight.size(), 0.5f)};
  std::vector<float> partial(static_cast<size_t>(kernels::gated_norm_partial_elements(shape)));
  const GatedNormGradients gradients{.x = out.grad_x.data(),
                                     .gate = out.grad_gate.data(),
                                     .partial = partial.data(),
                                     .weight = out.weight.data()};
  const int64_t pieces = kernels::gated_norm_pieces(shape.rows);
  kernels::gated_norm_cpu(shape, inputs, shape.rows / 2, shape.rows, out.y.data());
  kernels::gated_norm_cpu(shape, inputs, 0, shape.rows / 2, out.y.data());
  kernels::gated_norm_backward_cpu(shape, inputs, in.grad.data(), pieces / 2, pieces, gradients);
  kernels::gated_norm_backward_cpu(shape, inputs, in.grad.data(), 0, pieces / 2, gradients);
  kernels::add_gated_norm_partials_cpu(shape, gradients);
  return out;
}

// The emulated kernels. `shift` says by how many values x, gate, weight and grad begin off 16
// bytes.
template <typename X, typename T>
Results<X, T> on_gpu(const Operands<X, T>& in, bool summed,
                     const std::vector<int>& shift = {0, 0, 0, 0}) {
  const GatedNorm& shape = in.shape;
  const auto shifted = [](auto values, int by) {
    values.insert(values.begin(), static_cast<size_t>(by), {});
    return values;
  };
  Operand<X> x("x", shifted(in.x, shift[0])), grad_x("grad_x", in.x.size());
  Operand<T> gate("gate", shifted(in.gate, shift[1])), grad_gate("grad_gate", in.grad.size());
  Operand<T> weight("weight", shifted(in.weight, shift[2])), y("y", in.grad.size());
  Operand<T> grad("grad", shifted(in.grad, shift[3]));
  Operand<float> partial("partial",
                         static_cast<size_t>(kernels::gated_norm_partial_elements(shape)));
  Operand<float> sums("weight_sum", std::vector<float>(in.weight.size(), 0.5f));
  const GatedNormInputs inputs{
      .x = x.data() + shift[0], .gate = gate.data() + shift[1], .weight = weight.data() + shift[2]};
  kernels::gated_norm_cuda(shape, inputs, y.data(), nullptr);
  kernels::gated_norm_backward_cuda(shape, inputs, grad.data() + shift[3],
                                    {.x = grad_x.data(),
                                     .gate = grad_gate.data(),
                                     .partial = summed ? partial.data() : nullptr,
                                     .weight = summed ? sums.data() : nullptr},
                                    nullptr);
  return {y.values(), grad_gate.values(), grad_x.values(), sums.values()};
}

template <typename Value>
std::vector<Value> with_one(std::vector<Value> values) {
  values.push_back(kernels::rounded_to<Value>(1.0f));
  return values;
}

// Errors are relative to the terms of the sums: a segment of one value has almost no gradient.
template <typename X, typename T>
void expect_close(const Results<X, T>& got, const Results<X, T>& wanted, const std::string& name) {
  const auto error = [](const auto& one, const auto& other) {
    return relative_error(with_one(one), with_one(other));
  };
  EXPECT_LE(error(got.y, wanted.y), kTolerance<T>) << name;
  EXPECT_LE(error(got.grad_x, wanted.grad_x), 2 * kTolerance<X>) << name;
  EXPECT_LE(error(got.grad_gate, wanted.grad_gate), 2 * kTolerance<T>) << name;
  EXPECT_LE(error(got.weight, wanted.weight), 4 * kTolerance<float>) << name;
}

template <typename T>
class EmulatedGatedNorm : public testing::Test {
 protected:
  static GatedNorm shape(GateOrder order, int64_t rows, int64_t segments, int64_t width,
                         int64_t between = 0) {
    return {.dtype = kDTypeOf<T>,
            .order = order,
            .rows = rows,
            .segments = segments,
            .width = width,
            .gate_stride = segments * width + between,
            .eps = 1e-5};
  }
  template <typename X>
  static void compare_as(const GatedNorm& shape) {
    const std::string name = std::to_string(shape.rows) + " rows of " +
                             std::to_string(shape.segments) + " by " + std::to_string(shape.width);
    const Operands<X, T> in(shape);
    const Results<X, T> wanted = formula(in), gpu = on_gpu(in, true), alone = on_gpu(in, false);
    expect_close(gpu, wanted, name);
    expect_close(on_cpu(in), wanted, name + ", CPU");
    EXPECT_TRUE(same_bits(alone.grad_x, gpu.grad_x)) << name;
    EXPECT_TRUE(same_bits(alone.grad_gate, gpu.grad_gate)) << name;
    EXPECT_EQ(alone.weight, std::vector<float>(in.weight.size(), 0.5f)) << name;
  }
  static void compare(const GatedNorm& shape) {
    if (shape.order == GateOrder::kGateFirst) {
      compare_as<float>(shape);
    } else {
      compare_as<T>(shape);
    }
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedGatedNorm, Types);

constexpr GateOrder kOrders[] = {GateOrder::kNormFirst, GateOrder::kGateFirst};

// Goal: both orders agree with the formula for widths around those of a vector and of a warp, for
// one segment and several.
TYPED_TEST(EmulatedGatedNorm, AgreesWithTheFormula) {
  for (const GateOrder order : kOrders) {
    for (const int64_t width : {1, 2, 3, 4, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 129, 256}) {
      for (const int64_t segments : {1, 2, 3}) {
        for (const int64_t rows : {1, 2, 5}) {
          this->compare(this->shape(order, rows, segments, width));
        }
      }
    }
    for (const int64_t width : {512, 1023, 2052, 2500}) {
      this->compare(this->shape(order, 3, 2, width));
    }
  }
}

// Goal: the weights' gradient is right when a piece has a second row.
TYPED_TEST(EmulatedGatedNorm, HasMoreRowsThanPieces) {
  for (const GateOrder order : kOrders) {
    for (const int64_t rows : {127, 128, 129, 300}) {
      this->compare(this->shape(order, rows, 3, 6));
    }
  }
}

// Goal: rows of the gate may be strided, and operands may begin off 16 bytes, one at a time.
TYPED_TEST(EmulatedGatedNorm, TakesOperandsThatBeginAnywhere) {
  for (const int64_t between : {1, 4, 6, 16}) {
    for (const GateOrder order : kOrders) this->compare(this->shape(order, 4, 2, 36, between));
  }
  const Operands<TypeParam, TypeParam> heads(this->shape(GateOrder::kNormFirst, 4, 2, 36));
  const Operands<float, TypeParam> groups(this->shape(GateOrder::kGateFirst, 4, 2, 36));
  for (size_t which = 0; which < 4; ++which) {
    std::vector<int> shift(4, 0);
    shift[which] = 1;
    expect_close(on_gpu(heads, true, shift), formula(heads), "heads");
    expect_close(on_gpu(groups, true, shift), formula(groups), "groups");
  }
}

}  // namespace
}  // namespace longshore::emulation
