// The GPU's causal convolution, emulated on the host, gives the bits of its formula, and the CPU's
// agrees.
#include "kernels/causal_convolution.h"

#include <gtest/gtest.h>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::CausalConvolution;
using kernels::ConvolutionGradients;
using kernels::ConvolutionInputs;

using Lengths = std::vector<int64_t>;

std::vector<int64_t> positions_of(const Lengths& lengths) {
  std::vector<int64_t> positions;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) positions.push_back(i);
  }
  return positions;
}

template <typename T>
struct Results {
  std::vector<T> y, grad_x;
  std::vector<float> taps, bias;
};

template <typename T>
struct Operands {
  CausalConvolution shape;
  std::vector<int64_t> positions;
  std::vector<T> x, taps, bias, grad;

  // `biased` is in the shape of none: an empty bias is no bias.
  Operands(CausalConvolution of, const Lengths& lengths, bool biased)
      : shape(of), positions(positions_of(lengths)) {
    shape.rows = static_cast<int64_t>(positions.size());
    // The operand is a view into wider rows, so the last row ends where its channels end.
    x = random_values<T>((shape.rows - 1) * shape.row_stride + shape.channels, 1);
    taps = random_values<T>(shape.channels * shape.count, 2);
    if (biased) bias = random_values<T>(shape.channels, 3);
    grad = random_values<T>(shape.rows * shape.channels, 4);
  }
  size_t elements() const { return grad.size(); }
};

// The formula, one value after another.
template <typename T>
Results<T> formula(const Operands<T>& in) {
  using kernels::rounded, kernels::rounded_to, kernels::to_float;
  const CausalConvolution& shape = in.shape;
  const int64_t channels = shape.channels, count = shape.count;
  Results<T> out{std::vector<T>(in.elements()), std::vector<T>(in.elements()),
                 std::vector<float>(in.taps.size(), 0.5f), std::vector<float>(channels, 0.5f)};
  std::vector<float> inner(in.elements());
  const auto x = [&](int64_t t, int64_t c) { return to_float(in.x[t * shape.row_stride + c]); };
  const auto tap = [&](int64_t d, int64_t c) {
    return to_float(in.taps[c * count + count - 1 - d]);
  };
  for (int64_t t = 0; t < shape.rows; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      float sum = x(t, c) * tap(0, c);
      for (int64_t d = 1; d < count && d <= in.positions[t]; ++d) sum += x(t - d, c) * tap(d, c);
      if (!in.bias.empty()) sum += to_float(in.bias[c]);
      sum = rounded<T>(sum);
      const float s = 1.0f / (1.0f + std::exp(-sum)), upper = to_float(in.grad[t * channels + c]);
      out.y[t * channels + c] = rounded_to<T>(shape.activated ? sum * s : sum);
      const float through = shape.activated ? upper * s * (1.0f + sum * (1.0f - s)) : upper;
      inner[t * channels + c] = rounded<T>(through);
      for (int64_t d = 0; d < count && d <= in.positions[t]; ++d) {
        out.taps[c * count + count - 1 - d] += inner[t * channels + c] * x(t - d, c);
      }
      out.bias[c] += inner[t * channels + c];
    }
  }
  for (int64_t t = 0; t < shape.rows; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      float sum = inner[t * channels + c] * tap(0, c);
      for (int64_t d = 1; d < count && t + d < shape.rows && d <= in.positions[t + d]; ++d) {
        sum += inner[(t + d) * channels + c] * tap(d, c);
      }
      out.grad_x[t * channels + c] = rounded_to<T>(sum);
    }
  }
  return out;
}

// The kernels of the CPU, in two parts of rows and of pieces.
template <typename T>
Results<T> on_cpu(const Operands<T>& in) {
  const CausalConvolution& shape = in.shape;
  const ConvolutionInputs inputs{.x = in.x.data(),
                                 .taps = in.taps.data(),
                                 .bias = in.bias.empty() ? nullptr : in.bias.data(),
                                 .positions = in.positions.data()};
  Results<T> out{std::vector<T>(in.elements()), std::vector<T>(in.elements()),
                 std::vector<float>(in.taps.size(), 0.5f),
                 std::vector<float>(static_cast<size_t>(shape.channels), 0.5f)};
  std::vector<float> partial(static_cast<size_t>(kernels::convolution_partial_elements(shape)));
  const ConvolutionGradients gradients{.x = out.grad_x.data(),
                                       .partial = partial.data(),
                                       .taps = out.taps.data(),
                                       .bias = in.bias.empty() ? nullptr : out.bias.data()};
  const int64_t pieces = kernels::convolution_pieces(shape.rows);
  kernels::causal_convolution_cpu(shape, inputs, shape.rows / 2, shape.rows, out.y.data());
  kernels::causal_convolution_cpu(shape, inputs, 0, shape.rows / 2, out.y.data());
  kernels::causal_convolution_backward_cpu(shape, inputs, in.grad.data(), pieces / 2, pieces,
                                           gradients);
  kernels::causal_convolution_backward_cpu(shape, inputs, in.grad.data(), 0, pieces / 2, gradients);
  kernels::add_convolution_partials_cpu(shape, gradients);
  return out;
}

// The emulated kernels. `shift` is how many values off 16 bytes an operand begins: x, grad, grad_x.
template <typename T>
Results<T> on_gpu(const Operands<T>& in, const std::vector<int>& shift = {0, 0, 0}) {
  const CausalConvolution& shape = in.shape;
  const auto shifted = [](std::vector<T> values, int by) {
    values.insert(values.begin(), static_cast<size_t>(by), T{});
    return values;
  };
  const auto from = [](const std::vector<T>& values, int by) {
    return std::vector<T>(values.begin() + by, values.end());
  };
  const size_t extra = static_cast<size_t>(shift[2]);
  Operand<T> x("x", shifted(in.x, shift[0])), taps("taps", in.taps), bias("bias", in.bias);
  Operand<T> grad("grad", shifted(in.grad, shift[1]));
  Operand<T> y("y", in.elements() + extra), grad_x("grad_x", in.elements() + extra);
  Operand<int64_t> positions("positions", in.positions);
  const size_t channels = static_cast<size_t>(shape.channels);
  Operand<float> tap_sums("taps", std::vector<float>(in.taps.size(), 0.5f));
  Operand<float> bias_sums("bias", std::vector<float>(channels, 0.5f));
  Operand<float> partial("partial",
                         static_cast<size_t>(kernels::convolution_partial_elements(shape)));
  const ConvolutionInputs inputs{.x = x.data() + shift[0],
                                 .taps = taps.data(),
                                 .bias = in.bias.empty() ? nullptr : bias.data(),
                                 .positions = positions.data()};
  kernels::causal_convolution_cuda(shape, inputs, y.data() + extra, nullptr);
  kernels::causal_convolution_backward_cuda(shape, inputs, grad.data() + shift[1],
                                            {.x = grad_x.data() + extra,
                                             .partial = partial.data(),
                                             .taps = tap_sums.data(),
                                             .bias = in.bias.empty() ? nullptr : bias_sums.data()},
                                            nullptr);
  return {from(y.values(), shift[2]), from(grad_x.values(), shift[2]), tap_sums.values(),
          bias_sums.values()};
}

template <typename T>
class EmulatedConvolution : public testing::Test {
 protected:
  static CausalConvolution shape(int64_t channels, int64_t count, bool activated,
                                 int64_t between = 0) {
    return {.dtype = kDTypeOf<T>,
            .channels = channels,
            .count = count,
            .row_stride = channels + between,
            .activated = activated};
  }
  static void compare(const CausalConvolution& shape, const Lengths& lengths, bool biased) {
    const Operands<T> in(shape, lengths, biased);
    const Results<T> wanted = formula(in), gpu = on_gpu(in), cpu = on_cpu(in);
    EXPECT_TRUE(same_bits(gpu.y, wanted.y)) << name(shape, lengths);
    EXPECT_TRUE(same_bits(gpu.grad_x, wanted.grad_x)) << name(shape, lengths);
    EXPECT_LE(relative_error(cpu.y, wanted.y), kTolerance<T>) << name(shape, lengths);
    EXPECT_LE(relative_error(cpu.grad_x, wanted.grad_x), kTolerance<T>) << name(shape, lengths);
    for (const Results<T>& got : {gpu, cpu}) {
      // A gradient of bf16 may be rounded the other way where exp differs in the last place.
      const double limit = sizeof(T) == 4 ? 4 * kTolerance<float> : kTolerance<T> / 4;
      EXPECT_LE(relative_error(got.taps, wanted.taps), limit) << name(shape, lengths);
      if (!biased) continue;
      EXPECT_LE(relative_error(got.bias, wanted.bias), limit) << name(shape, lengths);
    }
  }
  static std::string name(const CausalConvolution& shape, const Lengths& lengths) {
    return std::to_string(shape.channels) + " channels, " + std::to_string(shape.count) +
           " taps, first of " + std::to_string(lengths.size()) + " documents has " +
           std::to_string(lengths[0]);
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedConvolution, Types);

// Goal: all numbers of taps, with and without bias and activation, for documents of one token,
// shorter than the taps and longer, and for channels around those of a vector, of a block and of a
// thread.
TYPED_TEST(EmulatedConvolution, GivesTheFormulasBits) {
  const Lengths lengths = {1, 1, 3, 9, 2, 1, 17, 4};
  for (const int64_t channels : {1, 2, 3, 15, 16, 17, 64, 127, 128, 129, 130, 257, 300}) {
    for (int64_t count = 1; count <= kernels::kMostTaps; ++count) {
      const bool activated = count % 2 == 0, biased = (count + channels) % 3 != 0;
      this->compare(this->shape(channels, count, activated), lengths, biased);
    }
  }
  for (const bool activated : {false, true}) {
    for (const bool biased : {false, true}) {
      this->compare(this->shape(20, 4, activated), lengths, biased);
    }
  }
}

// Goal: a border may lie anywhere relative to the rows of a thread and of a piece.
TYPED_TEST(EmulatedConvolution, HasBordersAtEveryOffset) {
  constexpr int64_t kRows = 70;
  for (int64_t border = 1; border < kRows; ++border) {
    this->compare(this->shape(4, 4, true), {border, kRows - border}, true);
    this->compare(this->shape(3, 3, false), {border, 1, kRows - border}, false);
  }
  for (int64_t rows = 1; rows <= kRows; ++rows)
    this->compare(this->shape(2, 4, true), {rows}, false);
}

// Goal: rows beyond 64 pieces of 32 lengthen the pieces.
TYPED_TEST(EmulatedConvolution, HasMoreRowsThanPieces) {
  for (const int64_t rows : {2047, 2048, 2049, 2100}) {
    this->compare(this->shape(3, 4, true), {rows - 1000, 1, 999}, true);
  }
}

// Goal: rows of x may be strided, and operands may begin off 16 bytes, one at a time.
TYPED_TEST(EmulatedConvolution, TakesOperandsThatBeginAnywhere) {
  for (const int64_t between : {1, 2, 7, 8}) {
    for (const int64_t channels : {4, 5, 34}) {
      this->compare(this->shape(channels, 4, true, between), {9, 30}, true);
    }
  }
  const Operands<TypeParam> in(this->shape(6, 4, true), {9, 30}, true);
  const Results<TypeParam> wanted = formula(in);
  for (const std::vector<int>& shift : {std::vector{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {2, 2, 2}}) {
    const Results<TypeParam> got = on_gpu(in, shift);
    EXPECT_TRUE(same_bits(got.y, wanted.y));
    EXPECT_TRUE(same_bits(got.grad_x, wanted.grad_x));
  }
}

// Goal: gradients that nobody wants are not computed, and the others keep their bits.
TYPED_TEST(EmulatedConvolution, ComputesWhatIsWanted) {
  const Operands<TypeParam> in(this->shape(34, 4, true), {9, 60}, true);
  const Results<TypeParam> all = on_gpu(in);
  Operand<TypeParam> x("x", in.x), taps("taps", in.taps), bias("bias", in.bias);
  Operand<TypeParam> grad("grad", in.grad), grad_x("grad_x", in.elements());
  Operand<int64_t> positions("positions", in.positions);
  Operand<float> tap_sums("taps", std::vector<float>(in.taps.size(), 0.5f));
  Operand<float> partial("partial",
                         static_cast<size_t>(kernels::convolution_partial_elements(in.shape)));
  const ConvolutionInputs inputs{
      .x = x.data(), .taps = taps.data(), .bias = bias.data(), .positions = positions.data()};
  kernels::causal_convolution_backward_cuda(in.shape, inputs, grad.data(), {.x = grad_x.data()},
                                            nullptr);
  kernels::causal_convolution_backward_cuda(
      in.shape, inputs, grad.data(), {.partial = partial.data(), .taps = tap_sums.data()}, nullptr);
  EXPECT_TRUE(same_bits(grad_x.values(), all.grad_x));
  EXPECT_TRUE(same_bits(tap_sums.values(), all.taps));
}

}  // namespace
}  // namespace longshore::emulation
