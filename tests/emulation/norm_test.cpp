// The GPU's norms, emulated on the host, against its reference.
#include "kernels/norm.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::Norm;

// The widths lie around the numbers of threads (32 to 512, each with 4 values) and of lanes.
const std::vector<int64_t> kWidths = {1,   2,   3,   7,   8,   15,   31,   32,   33,   63,
                                      64,  65,  96,  127, 128, 129,  200,  255,  256,  257,
                                      511, 512, 513, 768, 900, 1023, 1024, 1025, 2049, 2500};
const std::vector<int64_t> kRows = {1, 2, 3, 5, 8, 17, 33};

template <typename T>
class EmulatedNorm : public testing::Test {
 protected:
  static void forward(const Norm& shape) {
    const auto x = random_values<T>(shape.rows * shape.width, 1);
    const auto weight = random_values<T>(shape.width, 2);
    const auto bias = random_values<T>(shape.width, 5);
    std::vector<T> expected(x.size());
    kernels::norm_cpu(shape, 0, shape.rows, x.data(), weight.data(),
                      shape.centred ? bias.data() : nullptr, expected.data());
    Operand<T> in("x", x), scale("weight", weight), level("bias", bias), out("y", x.size());
    kernels::norm_cuda(shape, in.data(), scale.data(), shape.centred ? level.data() : nullptr,
                       out.data(), nullptr);
    EXPECT_LE(relative_error(out.values(), expected), kTolerance<T>) << name(shape);
  }

  static void backward(const Norm& shape, bool summed) {
    const auto x = random_values<T>(shape.rows * shape.width, 1);
    const auto weight = random_values<T>(shape.width, 2);
    const auto grad = random_values<T>(shape.rows * shape.width, 3);
    const auto before = random_values<float>(shape.width, 4);
    auto expected_sum = before, expected_bias = before;
    const bool biased = summed && shape.centred;
    std::vector<T> expected(x.size());
    kernels::norm_backward_cpu(shape, 0, shape.rows, grad.data(), x.data(), weight.data(),
                               expected.data(), summed ? expected_sum.data() : nullptr,
                               biased ? expected_bias.data() : nullptr);
    Operand<T> upper("grad", grad), in("x", x), scale("weight", weight), out("grad_x", x.size());
    Operand<float> sum("weight_sum", before), bias("bias_sum", before);
    const auto partials = kernels::norm_partial_elements(shape.rows, shape.width);
    Operand<float> partial("partial", static_cast<size_t>(partials) * (biased ? 2 : 1));
    kernels::norm_backward_cuda(shape, upper.data(), in.data(), scale.data(), out.data(),
                                summed ? sum.data() : nullptr, biased ? bias.data() : nullptr,
                                summed ? partial.data() : nullptr, nullptr);
    // The error is relative to the terms of the sum: a row of one value has almost no gradient.
    EXPECT_LE(relative_error(with_one(out.values()), with_one(expected)), 2 * kTolerance<T>)
        << name(shape);
    for (const auto& [got, wanted] :
         {std::pair(sum.values(), expected_sum), {bias.values(), expected_bias}}) {
      EXPECT_LE(relative_error(with_one(got), with_one(wanted)), kTolerance<float> * 4)
          << name(shape);
    }
  }

  template <typename Value>
  static std::vector<Value> with_one(std::vector<Value> values) {
    values.push_back(kernels::rounded_to<Value>(1.0f));
    return values;
  }
  static std::string name(const Norm& shape) {
    return std::to_string(shape.rows) + " rows of " + std::to_string(shape.width);
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedNorm, Types);

// Goal: the kernel agrees with the reference in 210 shapes, forward and backward.
TYPED_TEST(EmulatedNorm, AgreesWithTheReference) {
  for (const int64_t rows : kRows) {
    for (const int64_t width : kWidths) {
      const Norm shape = {kDTypeOf<TypeParam>, rows, width, 1e-5};
      this->forward(shape);
      this->backward(shape, true);
      this->backward(shape, false);
    }
  }
}

// Goal: LayerNorm and Gemma's norm agree too; the mean and the bias have the shapes' tails.
TYPED_TEST(EmulatedNorm, AgreesForEveryKind) {
  for (const int64_t rows : {1, 3, 17}) {
    for (const int64_t width : kWidths) {
      if (width == 1) continue;  // its variance is zero
      Norm shape = {kDTypeOf<TypeParam>, rows, width, 1e-5, /*rounds=*/false, /*centred=*/true};
      this->forward(shape);
      this->backward(shape, true);
      shape.centred = false, shape.offset = 1.0f;
      this->forward(shape);
      this->backward(shape, true);
    }
  }
}

// Goal: the weight's gradient is right when a block takes a second row, and a third.
TYPED_TEST(EmulatedNorm, HasMoreRowsThanPartialSums) {
  for (const auto& [rows, width] : {std::pair{257, 4100}, {600, 4097}, {700, 2048}, {257, 6144}}) {
    ASSERT_GT(rows, kernels::norm_partials(rows, width));
    this->backward({kDTypeOf<TypeParam>, rows, width, 1e-5}, true);
  }
  for (const int64_t rows : {255, 256, 257, 600}) {
    for (const int64_t width : {1, 33, 130}) {
      this->backward({kDTypeOf<TypeParam>, rows, width, 1e-5}, true);
    }
  }
}

// Goal: operands may begin off 16 bytes, one at a time, where rows could be loaded by 16.
TYPED_TEST(EmulatedNorm, TakesOperandsThatBeginAnywhere) {
  constexpr int64_t kRows = 3, kWidth = 192;
  const Norm shape = {kDTypeOf<TypeParam>, kRows, kWidth, 1e-5};
  const auto x = random_values<TypeParam>(kRows * kWidth, 1);
  const auto weight = random_values<TypeParam>(kWidth, 2);
  const auto grad = random_values<TypeParam>(kRows * kWidth, 3);
  std::vector<TypeParam> expected(x.size()), expected_grad(x.size());
  kernels::norm_cpu(shape, 0, kRows, x.data(), weight.data(), nullptr, expected.data());
  kernels::norm_backward_cpu(shape, 0, kRows, grad.data(), x.data(), weight.data(),
                             expected_grad.data(), nullptr, nullptr);
  const auto shifted = [](std::vector<TypeParam> values, int by) {
    values.insert(values.begin(), static_cast<size_t>(by), TypeParam{});
    return values;
  };
  for (int which = 0; which < 4; ++which) {
    const auto by = [which](int operand) { return which == operand ? 1 : 0; };
    Operand<TypeParam> in("x", shifted(x, by(0))), scale("weight", shifted(weight, by(1)));
    Operand<TypeParam> upper("grad", shifted(grad, by(2))), out("y", shifted(expected, by(3)));
    kernels::norm_cuda(shape, in.data() + by(0), scale.data() + by(1), nullptr, out.data() + by(3),
                       nullptr);
    EXPECT_LE(relative_error(out.values(), shifted(expected, by(3))), kTolerance<TypeParam>);
    kernels::norm_backward_cuda(shape, upper.data() + by(2), in.data() + by(0),
                                scale.data() + by(1), out.data() + by(3), nullptr, nullptr, nullptr,
                                nullptr);
    EXPECT_LE(relative_error(out.values(), shifted(expected_grad, by(3))),
              2 * kTolerance<TypeParam>);
  }
}

}  // namespace
}  // namespace longshore::emulation
