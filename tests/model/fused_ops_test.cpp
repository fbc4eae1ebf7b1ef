// The fused kernels: the CPU references against LibTorch's operations and autograd in fp64, and the
// GPU against the references.
#include "model/fused_ops.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

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
TEST_P(FusedOps, RmsNormAgreesWithAutograd) {
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

std::string dtype_name(const testing::TestParamInfo<at::ScalarType>& info) {
  return info.param == at::kFloat ? "fp32" : "bf16";
}
INSTANTIATE_TEST_SUITE_P(Dtypes, FusedOps, testing::Values(at::kFloat, at::kBFloat16), dtype_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, FusedOpsGpu, testing::Values(at::kFloat, at::kBFloat16),
                         dtype_name);

}  // namespace
}  // namespace longshore
