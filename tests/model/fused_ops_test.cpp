// The fused kernels: the CPU's against LibTorch's operations and autograd in fp64, and the GPU's
// against the CPU's.
#include "model/ops/fused_ops.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "device/cuda_device.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

at::Tensor random_tensor(std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape).to(dtype);
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor want = expected.to(at::kCPU).to(at::kDouble);
  const double error = (got.to(at::kCPU).to(at::kDouble) - want).abs().max().item<double>();
  return error / std::max(1e-30, want.abs().max().item<double>());
}

// The tolerance is relative to the largest value: fp32 sums of some hundred terms; bf16 rounding.
constexpr double kFloatTolerance = 2e-6;
constexpr double kBf16Tolerance = 8e-3;
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? kFloatTolerance : kBf16Tolerance;
}

class FusedOps : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(11); }
  at::Tensor random(std::vector<int64_t> shape) const {
    return random_tensor(std::move(shape), GetParam());
  }
  double limit() const { return tolerance(GetParam()); }
};

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
}

// RMSNorm and its gradients agree with autograd.
TEST_P(FusedOps, NormAgreesWithAutograd) {
  const at::Tensor x = random({37, 200}), weight = random({200}), grad = random({37, 200});
  const at::Tensor exact_x = x.to(at::kDouble).requires_grad_(true);
  const at::Tensor exact_weight = weight.to(at::kDouble).requires_grad_(true);
  const at::Tensor exact = plain_rms_norm(exact_x, exact_weight, 1e-5);
  exact.backward(grad.to(at::kDouble));
  const at::Tensor sum = at::ones({200});
  const at::Tensor grad_x = fused::norm_backward(grad, x, weight, NormKind::kRms, 1e-5, sum, {});
  EXPECT_LE(relative_error(fused::norm(x, weight, {}, NormKind::kRms, 1e-5), exact.detach()),
            limit());
  EXPECT_LE(relative_error(grad_x, exact_x.grad()), limit());
  EXPECT_LE(relative_error(sum - 1.0, exact_weight.grad()), kFloatTolerance * 4) << "added to";
  EXPECT_TRUE(
      at::equal(fused::norm_backward(grad, x, weight, NormKind::kRms, 1e-5, {}, {}), grad_x));
}

// The rotary embedding agrees with complex multiplication, and its inverse undoes it.
TEST_P(FusedOps, RotationAgreesWithComplexNumbersAndTurnsBack) {
  const int64_t rows = 19, heads = 3, dim = 16;
  const at::Tensor wide = random({rows, heads * dim + 8});
  const at::Tensor x = wide.narrow(1, 0, heads * dim);  // strided rows
  const at::Tensor positions = at::randint(0, 5000, {rows});
  const at::Tensor frequencies = at::pow(10000.0, -at::arange(dim / 2) * 2.0 / dim);
  const at::Tensor halves = x.to(at::kDouble).view({rows, heads, 2, dim / 2});
  const at::Tensor angles =
      (positions.to(at::kFloat).unsqueeze(1) * frequencies).to(at::kDouble).unsqueeze(1);
  const at::Tensor turned = at::complex(halves.select(2, 0), halves.select(2, 1)) *
                            at::polar(at::ones_like(angles), angles);
  const at::Tensor exact = at::cat({at::real(turned), at::imag(turned)}, 2).view({rows, -1});
  const at::Tensor out = fused::rotate(x, positions, {frequencies}, dim, 1);
  EXPECT_LE(relative_error(out, exact), limit() * 2);
  EXPECT_LE(relative_error(fused::rotate(out, positions, {frequencies}, dim, -1), x), limit() * 3);
}

// SwiGLU and its gradients agree with autograd.
TEST_P(FusedOps, SwigluAgreesWithAutograd) {
  const at::Tensor gate = random({13, 77}), up = random({13, 77}), grad = random({13, 77});
  const at::Tensor exact_gate = gate.to(at::kDouble).requires_grad_(true);
  const at::Tensor exact_up = up.to(at::kDouble).requires_grad_(true);
  const at::Tensor exact = at::silu(exact_gate) * exact_up;
  exact.backward(grad.to(at::kDouble));
  EXPECT_LE(relative_error(fused::glu(gate, up, Activation::kSilu), exact.detach()), limit());
  fused::glu_backward(grad, gate, up, Activation::kSilu);
  EXPECT_LE(relative_error(gate, exact_gate.grad()), limit());
  EXPECT_LE(relative_error(up, exact_up.grad()), limit());
}

// Every other norm and its gradients agree with autograd, at any width.
TEST_P(FusedOps, NormsOfEveryKindAgreeWithAutograd) {
  for (const NormKind kind : {NormKind::kRmsWide, NormKind::kRmsOffset, NormKind::kLayer}) {
    const bool centred = kind == NormKind::kLayer;
    for (const auto& [rows, width] : {std::pair{1, 5}, {3, 16}, {37, 200}, {1100, 33}}) {
      const at::Tensor x = random({rows, width}), grad = random({rows, width});
      const at::Tensor weight = random({width}), bias = centred ? random({width}) : at::Tensor();
      const at::Tensor exact_x = x.to(at::kDouble).requires_grad_(true);
      const at::Tensor exact_weight = weight.to(at::kDouble).requires_grad_(true);
      const at::Tensor exact_bias =
          centred ? bias.to(at::kDouble).requires_grad_(true) : at::Tensor();
      const at::Tensor exact =
          centred ? at::layer_norm(exact_x, {width}, exact_weight, exact_bias, 1e-5)
                  : plain_rms_norm(exact_x, exact_weight + (kind == NormKind::kRmsOffset), 1e-5);
      exact.backward(grad.to(at::kDouble));
      const at::Tensor sum = at::zeros({width}), bias_sum = centred ? sum.clone() : at::Tensor();
      const at::Tensor grad_x = fused::norm_backward(grad, x, weight, kind, 1e-5, sum, bias_sum);
      EXPECT_LE(relative_error(fused::norm(x, weight, bias, kind, 1e-5), exact.detach()), limit());
      EXPECT_LE(relative_error(grad_x, exact_x.grad()), limit() * 2) << width;
      EXPECT_LE(relative_error(sum, exact_weight.grad()), kFloatTolerance * 4) << width;
      if (!centred) continue;
      EXPECT_LE(relative_error(bias_sum, exact_bias.grad()), kFloatTolerance * 4) << width;
    }
  }
}

// Rotations of parts of heads, of neighbours and with own frequencies agree with complex numbers.
TEST_P(FusedOps, RotationsOfEveryKindAgreeWithComplexNumbers) {
  const int64_t rows = 19, heads = 3, dim = 70;
  const at::Tensor x = random({rows, heads * dim});
  const at::Tensor positions = at::randint(0, 5000, {rows});
  for (const int64_t turned : {2, 34, 70}) {
    for (const bool pairs : {false, true}) {
      for (const bool own : {false, true}) {
        at::Tensor turns = at::pow(10000.0, -at::arange(turned / 2) * 2.0 / turned);
        if (own) turns = at::rand({rows, 1}) * turns;
        const at::Tensor parts = x.to(at::kDouble).view({rows, heads, dim}).narrow(2, 0, turned);
        const at::Tensor halves = pairs ? parts.reshape({rows, heads, turned / 2, 2})
                                        : parts.reshape({rows, heads, 2, turned / 2}).mT();
        const at::Tensor angles =
            (positions.to(at::kFloat).unsqueeze(1) * turns).to(at::kDouble).unsqueeze(1);
        const at::Tensor both = at::complex(halves.select(3, 0), halves.select(3, 1)) *
                                at::polar(at::full_like(angles, 1.25), angles);
        const at::Tensor moved = at::view_as_real(both);
        at::Tensor exact = x.to(at::kDouble).view({rows, heads, dim}).clone();
        exact.narrow(2, 0, turned)
            .copy_((pairs ? moved : moved.mT()).reshape({rows, heads, turned}));
        const at::Tensor out = fused::rotate(x, positions, {turns, 1.25, pairs}, dim, 1);
        EXPECT_LE(relative_error(out.view({rows, heads, dim}), exact), limit() * 2)
            << turned << (pairs ? " pairs" : " halves") << (own ? ", own" : "");
      }
    }
  }
}

// Gated units and activations agree with autograd where gate and up are parts of one matrix, as
// halves or interleaved.
TEST_P(FusedOps, GatedUnitsOfEveryKindAgreeWithAutograd) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const bool gated : {false, true}) {
      for (const bool interleaved : {false, true}) {
        const at::Tensor both = random({13, 2 * 77}), grad = random({13, 77});
        const auto part = [&](const at::Tensor& x, int64_t which) {
          return interleaved ? x.slice(1, which, 2 * 77, 2) : x.narrow(1, which * 77, 77);
        };
        const at::Tensor exact = both.to(at::kDouble).requires_grad_(true);
        const at::Tensor inner = part(exact, 0);
        const at::Tensor active =
            activation == Activation::kSilu ? at::silu(inner) : at::gelu(inner, "tanh");
        const at::Tensor value = gated ? active * part(exact, 1) : active;
        value.backward(grad.to(at::kDouble));
        const at::Tensor gate = part(both, 0), up = gated ? part(both, 1) : at::Tensor();
        EXPECT_LE(relative_error(fused::glu(gate, up, activation), value.detach()), limit());
        fused::glu_backward(grad, gate, up, activation);
        EXPECT_LE(relative_error(gate, part(exact.grad(), 0)), limit());
        if (!gated) continue;
        EXPECT_LE(relative_error(up, part(exact.grad(), 1)), limit());
      }
    }
  }
}

// Everything that the kernels make of some rows.
std::vector<at::Tensor> all_results(const at::Tensor& x, const at::Tensor& grad,
                                    const at::Tensor& weight) {
  const int64_t width = weight.size(0);
  const at::Tensor sums = at::zeros({2, width});
  const at::Tensor frequencies = at::arange(1, width / 2 + 1, at::kFloat).reciprocal();
  const at::Tensor gate = x.clone(), up = grad.clone();
  std::vector<at::Tensor> results{
      fused::norm(x, weight, weight, NormKind::kLayer, 1e-5),
      fused::norm_backward(grad, x, weight, NormKind::kLayer, 1e-5, sums[0], sums[1]),
      fused::norm_backward(grad, x, weight, NormKind::kRms, 1e-5, {}, {}),
      fused::rotate(x, at::arange(x.size(0)), {frequencies}, width, 1),
      fused::glu(x, grad, Activation::kSilu)};
  fused::glu_backward(x, gate, up, Activation::kSilu);
  results.insert(results.end(), {sums, gate, up});
  return results;
}

// The number of threads changes no bits, from one thread to more than there are processors.
TEST_P(FusedOps, ThreadsChangeNoBits) {
  const int before = at::get_num_threads();
  for (const auto& [rows, width] : {std::pair{1, 70}, {17, 4096}, {1100, 334}}) {
    const at::Tensor x = random({rows, width}), grad = random({rows, width});
    const at::Tensor weight = random({width});
    at::set_num_threads(1);
    const std::vector<at::Tensor> expected = all_results(x, grad, weight);
    for (const int threads : {2, 5}) {
      at::set_num_threads(threads);
      const std::vector<at::Tensor> got = all_results(x, grad, weight);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], expected[i])) << "result " << i << ", " << threads;
      }
    }
    at::set_num_threads(before);
  }
}

// Operands may begin at any element.
TEST_P(FusedOps, OperandsMayBeginAnywhere) {
  const at::Tensor x = random({9, 70}), grad = random({9, 70}), weight = random({70});
  const auto moved = [](const at::Tensor& values) {
    const at::Tensor room = at::zeros({values.numel() + 1}, values.options());
    const at::Tensor place = room.narrow(0, 1, values.numel()).view(values.sizes());
    return place.copy_(values);
  };
  const std::vector<at::Tensor> expected = all_results(x, grad, weight);
  const std::vector<at::Tensor> got = all_results(moved(x), moved(grad), moved(weight));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
}

// NaN and infinities stay in their rows, and in their elements where elements are independent.
TEST_P(FusedOps, NonFiniteValuesStayWhereTheyAre) {
  const at::Tensor x = random({3, 40}), other = random({3, 40}), weight = random({40});
  const float inf = std::numeric_limits<float>::infinity();
  x[1][7].fill_(NAN);
  x[1][39].fill_(-inf);
  const auto finite = [](const at::Tensor& y) { return at::isfinite(y); };
  const at::Tensor normed = finite(fused::norm(x, weight, {}, NormKind::kRms, 1e-5));
  EXPECT_TRUE(at::equal(normed.sum(1), at::tensor({40, 0, 40}, at::kLong)));
  EXPECT_TRUE(at::equal(finite(fused::glu(x, other, Activation::kSilu)), finite(x)));
  EXPECT_TRUE(at::equal(finite(fused::glu(other, x, Activation::kSilu)), finite(x)));
}

// Cross entropy and its gradient agree with autograd.
TEST_P(FusedOps, CrossEntropyAgreesWithAutograd) {
  const at::Tensor logits = random({29, 301}) * 4.0;
  const at::Tensor targets = at::randint(0, 301, {29});
  const at::Tensor exact = logits.to(at::kDouble).requires_grad_(true);
  const at::Tensor losses = at::nll_loss(at::log_softmax(exact, 1), targets, {}, 0);
  (losses.sum() * 0.125).backward();
  const at::Tensor kept = logits.clone();
  const at::Tensor alone = fused::cross_entropy(logits, targets, 0.125, false);
  EXPECT_LE(relative_error(alone, losses.detach()), kFloatTolerance * 2);
  EXPECT_TRUE(at::equal(logits, kept)) << "without a gradient the logits stay";
  EXPECT_TRUE(at::equal(fused::cross_entropy(logits, targets, 0.125, true), alone));
  EXPECT_LE(relative_error(logits, exact.grad()), limit());
}

// The statistics of rows are torch's: whether the target has the highest logit, and the entropy.
TEST_P(FusedOps, CrossEntropyTellsTheHighestLogitAndTheEntropy) {
  const at::Tensor logits = random({29, 301}) * 4.0;
  const at::Tensor highest = at::argmax(logits, 1);
  const at::Tensor targets = at::randint(0, 301, {29});
  targets.slice(0, 0, 15).copy_(highest.slice(0, 0, 15));
  const at::Tensor statistics = at::empty({29, 2}, at::kFloat);
  fused::cross_entropy(logits.clone(), targets, 0.125, true, {}, statistics);
  const at::Tensor logs = at::log_softmax(logits.to(at::kDouble), 1);
  EXPECT_TRUE(at::equal(statistics.select(1, 0), (highest == targets).to(at::kFloat)));
  EXPECT_LE(relative_error(statistics.select(1, 1), (logs.exp() * logs).sum(1).neg()), 1e-5);
}

// The loss is finite for logits that overflow exp and for minus infinity.
TEST_P(FusedOps, CrossEntropyStaysFinite) {
  at::Tensor logits = at::full({1, 5}, 300.0, at::TensorOptions(GetParam()));
  logits.index_put_({0, 1}, -std::numeric_limits<float>::infinity());
  logits.index_put_({0, 2}, -3e4);
  const at::Tensor losses = fused::cross_entropy(logits, at::tensor({4}, at::kLong), 1.0, true);
  EXPECT_NEAR(losses.item<float>(), std::log(3.0), 1e-5);
  EXPECT_NEAR(logits[0][4].item<float>(), 1.0 / 3.0 - 1.0, 4e-3);
  EXPECT_EQ(logits[0][1].item<float>(), 0.0f);
}

// Targets outside the vocabulary are refused.
TEST_P(FusedOps, TargetsOutsideTheVocabularyAreRefused) {
  const at::Tensor logits = random({2, 5});
  EXPECT_THROW(fused::cross_entropy(logits, at::tensor({1, 5}, at::kLong), 1.0, false),
               CheckFailure);
}

// The GPU agrees with the reference within rounding, and gives the same bits twice.
class FusedOpsGpu : public FusedOps {
 protected:
  void SetUp() override {
    LONGSHORE_NEEDS_GPU();
    prepare_cuda(0);
    at::manual_seed(11);
  }
  // An Op gets its inputs on a device and returns all results.
  using Op = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;
  void compare(const std::vector<at::Tensor>& inputs, const Op& op) const {
    const auto run = [&](at::Device device) {
      std::vector<at::Tensor> copies;
      for (const at::Tensor& input : inputs) copies.push_back(input.clone().to(device));
      std::vector<at::Tensor> results = op(std::move(copies));
      for (at::Tensor& result : results) result = result.cpu();
      return results;
    };
    const auto reference = [&] {
      const fakes::CpuBranches branches;
      return run(at::kCPU);
    };
    const auto expected = reference(), got = run(gpu_tensors(0)), again = run(gpu_tensors(0));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(relative_error(got[i], expected[i]), limit() * 2) << "result " << i;
      EXPECT_TRUE(at::equal(got[i], again[i])) << "result " << i << " repeats";
    }
  }
};

// RMSNorm on a GPU agrees with the reference and repeats.
TEST_P(FusedOpsGpu, RmsNorm) {
  for (const auto& [rows, width] : {std::pair{37, 200}, {1000, 64}, {300, 4096}}) {
    compare({random({rows, width}), random({rows, width}), random({width}), at::zeros({width})},
            [](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
              const at::Tensor grad_x =
                  fused::norm_backward(in[0], in[1], in[2], NormKind::kRms, 1e-5, in[3], {});
              return {fused::norm(in[1], in[2], {}, NormKind::kRms, 1e-5), grad_x, in[3]};
            });
  }
}

// The rotary embedding on a GPU agrees with the reference and repeats.
TEST_P(FusedOpsGpu, Rotation) {
  const at::Tensor frequencies = at::pow(10000.0, -at::arange(32) * 2.0 / 64);
  compare({random({501, 8 * 64}), at::randint(0, 4000, {501}), frequencies},
          [](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
            return {fused::rotate(in[0], in[1], {in[2]}, 64, 1),
                    fused::rotate(in[0], in[1], {in[2]}, 64, -1)};
          });
}

// SwiGLU on a GPU agrees with the reference and repeats.
TEST_P(FusedOpsGpu, Swiglu) {
  for (const int64_t width : {77, 11008}) {
    compare({random({13, width}), random({13, width}), random({13, width})},
            [](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
              const at::Tensor y = fused::glu(in[1], in[2], Activation::kSilu);
              fused::glu_backward(in[0], in[1], in[2], Activation::kSilu);
              return {y, in[1], in[2]};
            });
  }
}

// Cross entropy on a GPU agrees with the reference and repeats.
TEST_P(FusedOpsGpu, CrossEntropy) {
  for (const int64_t vocabulary : {301, 32000}) {
    compare({random({64, vocabulary}) * 4.0, at::randint(0, vocabulary, {64})},
            [](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
              const at::Tensor losses = fused::cross_entropy(in[0], in[1], 0.125, true);
              return {losses, in[0]};
            });
  }
}

// The other norms, and a width without 16-byte rows, on a GPU agree with the reference and repeat.
TEST_P(FusedOpsGpu, NormsOfEveryKind) {
  for (const auto& [kind, width] : {std::pair{NormKind::kLayer, 200},
                                    {NormKind::kLayer, 77},
                                    {NormKind::kRmsOffset, 200},
                                    {NormKind::kRmsWide, 128},
                                    {NormKind::kRms, 77}}) {
    // 9000 rows are more than there are partial sums of a head of 128.
    const int64_t rows = width == 128 ? 9000 : 37;
    compare({random({rows, width}), random({rows, width}), random({width}), random({width}),
             at::zeros({2, width})},
            [kind = kind](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
              const bool biased = kind == NormKind::kLayer;
              const at::Tensor bias = biased ? in[3] : at::Tensor();
              const at::Tensor bias_sum = biased ? in[4][1] : at::Tensor();
              const at::Tensor grad_x =
                  fused::norm_backward(in[0], in[1], in[2], kind, 1e-5, in[4][0], bias_sum);
              return {fused::norm(in[1], in[2], bias, kind, 1e-5), grad_x, in[4]};
            });
  }
}

// Rotations of parts of heads, of neighbours, with a scale and of strided rows do too.
TEST_P(FusedOpsGpu, RotationsOfEveryKind) {
  for (const auto& [turned, pairs] : {std::pair{32, false}, {64, true}, {16, true}, {10, false}}) {
    const at::Tensor frequencies = at::pow(10000.0, -at::arange(turned / 2) * 2.0 / turned);
    compare({random({501, 9 * 64}), at::randint(0, 4000, {501}), frequencies},
            [pairs = pairs](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
              const at::Tensor x = in[0].narrow(1, 0, 8 * 64);
              return {fused::rotate(x, in[1], {in[2], 1.25, pairs}, 64, 1),
                      fused::rotate(x, in[1], {in[2], 1.25, pairs}, 64, -1)};
            });
  }
}

// GELU, activations without `up`, and strided operands do too.
TEST_P(FusedOpsGpu, GatedUnitsOfEveryKind) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const bool gated : {false, true}) {
      for (const int64_t width : {77, 1024}) {
        compare({random({13, width}), random({13, 2 * width})},
                [=](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
                  const at::Tensor gate = in[1].narrow(1, 0, width);
                  const at::Tensor up = gated ? in[1].narrow(1, width, width) : at::Tensor();
                  const at::Tensor y = fused::glu(gate, up, activation);
                  fused::glu_backward(in[0], gate, up, activation);
                  return {y, in[1]};
                });
      }
    }
  }
}

// Convolutions of few and many taps, with and without an activation, do too.
TEST_P(FusedOpsGpu, Convolutions) {
  const at::Tensor positions = at::cat({at::arange(1), at::arange(3), at::arange(300)});
  for (const auto& [taps, activated] : {std::pair{4, true}, {4, false}, {7, true}}) {
    for (const int64_t channels : {77, 192}) {
      compare({random({304, channels}), random({304, channels}), random({channels, 1, taps}),
               positions},
              [activated = activated,
               type = GetParam()](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
                const fused::Convolution convolution{
                    .taps = in[2], .bias = {}, .positions = in[3], .activated = activated};
                const auto own =
                    fused::causal_convolution_backward(in[0], in[1], convolution, true, true);
                return {fused::causal_convolution(in[1], convolution), own.x, own.taps.to(type)};
              });
    }
  }
}

std::string dtype_name(const testing::TestParamInfo<at::ScalarType>& info) {
  return info.param == at::kFloat ? "fp32" : "bf16";
}
INSTANTIATE_TEST_SUITE_P(Dtypes, FusedOps, testing::Values(at::kFloat, at::kBFloat16), dtype_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, FusedOpsGpu, testing::Values(at::kFloat, at::kBFloat16),
                         dtype_name);

}  // namespace
}  // namespace longshore
