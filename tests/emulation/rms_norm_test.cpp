// The GPU's RMSNorm, emulated on the host, against its reference.
#include "kernels/rms_norm.h"

#include <gtest/gtest.h>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::RmsNorm;

// The widths lie around the numbers of threads (32 to 512, each with 4 values) and of lanes.
const std::vector<int64_t> kWidths = {1,   2,   3,   7,   8,   15,   31,   32,   33,   63,
                                      64,  65,  96,  127, 128, 129,  200,  255,  256,  257,
                                      511, 512, 513, 768, 900, 1023, 1024, 1025, 2049, 2500};
const std::vector<int64_t> kRows = {1, 2, 3, 5, 8, 17, 33};

template <typename T>
class EmulatedRmsNorm : public testing::Test {
 protected:
  static void forward(const RmsNorm& shape) {
    const auto x = random_values<T>(shape.rows * shape.width, 1);
    const auto weight = random_values<T>(shape.width, 2);
    std::vector<T> expected(x.size());
    kernels::rms_norm_cpu(shape, x.data(), weight.data(), expected.data());
    Operand<T> in("x", x), scale("weight", weight), out("y", x.size());
    kernels::rms_norm_cuda(shape, in.data(), scale.data(), out.data(), nullptr);
    EXPECT_LE(relative_error(out.values(), expected), kTolerance<T>) << name(shape);
  }

  static void backward(const RmsNorm& shape, bool summed) {
    const auto x = random_values<T>(shape.rows * shape.width, 1);
    const auto weight = random_values<T>(shape.width, 2);
    const auto grad = random_values<T>(shape.rows * shape.width, 3);
    const auto before = random_values<float>(shape.width, 4);
    auto expected_sum = before;
    std::vector<T> expected(x.size());
    kernels::rms_norm_backward_cpu(shape, grad.data(), x.data(), weight.data(), expected.data(),
                                   summed ? expected_sum.data() : nullptr);
    Operand<T> upper("grad", grad), in("x", x), scale("weight", weight), out("grad_x", x.size());
    Operand<float> sum("weight_sum", before);
    const auto partials = kernels::rms_norm_partial_elements(shape.rows, shape.width);
    Operand<float> partial("partial", static_cast<size_t>(partials));
    kernels::rms_norm_backward_cuda(shape, upper.data(), in.data(), scale.data(), out.data(),
                                    summed ? sum.data() : nullptr,
                                    summed ? partial.data() : nullptr, nullptr);
    // The error is relative to the terms of the sum: a row of one value has almost no gradient.
    EXPECT_LE(relative_error(with_one(out.values()), with_one(expected)), 2 * kTolerance<T>)
        << name(shape);
    EXPECT_LE(relative_error(with_one(sum.values()), with_one(expected_sum)), kTolerance<float> * 4)
        << name(shape);
  }

  template <typename Value>
  static std::vector<Value> with_one(std::vector<Value> values) {
    values.push_back(kernels::rounded_to<Value>(1.0f));
    return values;
  }
  static std::string name(const RmsNorm& shape) {
    return std::to_string(shape.rows) + " rows of " + std::to_string(shape.width);
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedRmsNorm, Types);

// Goal: the kernel agrees with the reference in 210 shapes, forward and backward.
TYPED_TEST(EmulatedRmsNorm, AgreesWithTheReference) {
  for (const int64_t rows : kRows) {
    for (const int64_t width : kWidths) {
      const RmsNorm shape = {kDTypeOf<TypeParam>, rows, width, 1e-5};
      this->forward(shape);
      this->backward(shape, true);
      this->backward(shape, false);
    }
  }
}

// Goal: the weight's gradient is right when a block takes a second row.
TYPED_TEST(EmulatedRmsNorm, HasMoreRowsThanPartialSums) {
  for (const int64_t rows : {255, 256, 257, 600}) {
    for (const int64_t width : {1, 33, 130}) {
      this->backward({kDTypeOf<TypeParam>, rows, width, 1e-5}, true);
    }
  }
}

// Goal: operands may begin off 16 bytes, one at a time, where rows could be loaded by 16.
TYPED_TEST(EmulatedRmsNorm, TakesOperandsThatBeginAnywhere) {
  constexpr int64_t kRows = 3, kWidth = 192;
  const RmsNorm shape = {kDTypeOf<TypeParam>, kRows, kWidth, 1e-5};
  const auto x = random_values<TypeParam>(kRows * kWidth, 1);
  const auto weight = random_values<TypeParam>(kWidth, 2);
  const auto grad = random_values<TypeParam>(kRows * kWidth, 3);
  std::vector<TypeParam> expected(x.size()), expected_grad(x.size());
  kernels::rms_norm_cpu(shape, x.data(), weight.data(), expected.data());
  kernels::rms_norm_backward_cpu(shape, grad.data(), x.data(), weight.data(), expected_grad.data(),
                                 nullptr);
  const auto shifted = [](std::vector<TypeParam> values, int by) {
    values.insert(values.begin(), static_cast<size_t>(by), TypeParam{});
    return values;
  };
  for (int which = 0; which < 4; ++which) {
    const auto by = [which](int operand) { return which == operand ? 1 : 0; };
    Operand<TypeParam> in("x", shifted(x, by(0))), scale("weight", shifted(weight, by(1)));
    Operand<TypeParam> upper("grad", shifted(grad, by(2))), out("y", shifted(expected, by(3)));
    kernels::rms_norm_cuda(shape, in.data() + by(0), scale.data() + by(1), out.data() + by(3),
                           nullptr);
    EXPECT_LE(relative_error(out.values(), shifted(expected, by(3))), kTolerance<TypeParam>);
    kernels::rms_norm_backward_cuda(shape, upper.data() + by(2), in.data() + by(0),
                                    scale.data() + by(1), out.data() + by(3), nullptr, nullptr,
                                    nullptr);
    EXPECT_LE(relative_error(out.values(), shifted(expected_grad, by(3))),
              2 * kTolerance<TypeParam>);
  }
}

}  // namespace
}  // namespace longshore::emulation
