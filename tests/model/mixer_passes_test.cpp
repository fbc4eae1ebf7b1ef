// The passes around a mixer's recurrence: the CPU against LibTorch's operations and autograd in
// fp64, and the GPU against the CPU.
#include "model/mixers/mixer_passes.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "device/cuda_device.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

constexpr double kEps = 1e-3;

using Tensors = std::vector<at::Tensor>;
using Pass = std::function<at::Tensor(const Tensors&)>;

at::Tensor positions_of(const std::vector<int64_t>& lengths) {
  Tensors parts;
  for (const int64_t length : lengths) parts.push_back(at::arange(length));
  return at::cat(parts);
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor want = expected.to(at::kCPU).to(at::kDouble);
  const double error = (got.to(at::kCPU).to(at::kDouble) - want).abs().max().item<double>();
  return error / std::max(1e-30, want.abs().max().item<double>());
}

Tensors leaves_of(const Tensors& values) {
  Tensors leaves;
  for (const at::Tensor& value : values) {
    leaves.push_back(value.detach().clone().requires_grad_(true));
  }
  return leaves;
}

// Returns the result of a pass, then the gradients of its inputs.
Tensors run(const Pass& pass, const Tensors& values, const at::Tensor& grad) {
  const at::AutoGradMode grad_mode(true);
  const Tensors leaves = leaves_of(values);
  const at::Tensor out = pass(leaves);
  Tensors all{out.detach()};
  for (const at::Tensor& one : torch::autograd::grad({out}, leaves, {grad})) all.push_back(one);
  return all;
}

Tensors in_double(const Tensors& values) {
  Tensors all;
  for (const at::Tensor& value : values) all.push_back(value.to(at::kDouble));
  return all;
}

// torch's convolution of each document alone.
at::Tensor plain_convolution(const Tensors& in, const std::vector<int64_t>& lengths,
                             bool activated) {
  Tensors rows;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const at::Tensor x = in[0].narrow(0, begin, length).t().unsqueeze(0);
    const at::Tensor y = at::conv1d(x, in[1], in.size() > 2 ? in[2] : at::Tensor(), 1,
                                    in[1].size(2) - 1, 1, in[1].size(0));
    rows.push_back(y.squeeze(0).narrow(1, 0, length).t());
    begin += length;
  }
  const at::Tensor whole = at::cat(rows, 0);
  return activated ? at::silu(whole) : whole;
}

at::Tensor convolve(const Tensors& in, const at::Tensor& positions, bool activated) {
  return causal_convolution(
      in[0], {.taps = in[1], .bias = in.size() > 2 ? in[2] : at::Tensor(), .activated = activated},
      positions);
}

at::Tensor normed(const at::Tensor& x) {
  return x * (x.square().mean(-1, true) + kEps).rsqrt();
}

at::Tensor plain_gated_norm(const Tensors& in) {
  const at::Tensor heads = in[0].view({in[0].size(0), -1, in[2].size(0)});
  return (normed(heads) * in[2]).flatten(1) * at::silu(in[1]);
}

at::Tensor plain_norm_of_gated(const Tensors& in, int64_t groups) {
  const at::Tensor gated = in[0] * at::silu(in[1]);
  return normed(gated.view({gated.size(0), groups, -1})).flatten(1) * in[2];
}

class MixerPasses : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(11); }
  at::Tensor random(std::vector<int64_t> shape) const { return at::randn(shape).to(GetParam()); }
  double limit() const { return GetParam() == at::kFloat ? 4e-6 : 1.6e-2; }
  void expect_close(const Tensors& got, const Tensors& expected, const std::string& name) const {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(relative_error(got[i], expected[i]), limit()) << name << ", " << i;
    }
  }
};

// Goal: the convolution of packed documents and its gradients are torch's of each document alone,
// with and without bias and activation, for several pieces of rows.
TEST_P(MixerPasses, ConvolutionAgreesWithAutograd) {
  const std::vector<int64_t> lengths = {1, 7, 2, 140, 1, 3, 60};
  const at::Tensor positions = positions_of(lengths);
  for (const int64_t taps : {1, 3, 4, 8}) {
    for (const bool biased : {false, true}) {
      for (const bool activated : {false, true}) {
        Tensors values{random({positions.size(0), 150}), random({150, 1, taps})};
        if (biased) values.push_back(random({150}));
        const at::Tensor grad = random({positions.size(0), 150});
        const auto plain = [&](const Tensors& in) {
          return plain_convolution(in, lengths, activated);
        };
        const auto own = [&](const Tensors& in) { return convolve(in, positions, activated); };
        expect_close(run(own, values, grad), run(plain, in_double(values), grad.to(at::kDouble)),
                     std::to_string(taps) + " taps");
      }
    }
  }
}

// Goal: a view of wider rows gives the bits of a copy.
TEST_P(MixerPasses, RowsMayBeStrided) {
  const at::Tensor positions = positions_of({5, 60}), wide = random({65, 77});
  const at::Tensor grad = random({65, 40}), weight = random({20});
  const at::Tensor view = wide.narrow(1, 3, 40), taps = random({40, 1, 4});
  const auto both = [&](const Pass& pass) {
    const at::AutoGradMode grad_mode(true);
    std::vector<Tensors> results;
    for (const at::Tensor& x : {view, view.contiguous()}) {
      const at::Tensor leaf = x.detach().requires_grad_(true);
      const at::Tensor out = pass({leaf});
      results.push_back({out.detach(), torch::autograd::grad({out}, {leaf}, {grad})[0]});
    }
    EXPECT_TRUE(at::equal(results[0][0], results[1][0]));
    EXPECT_TRUE(at::equal(results[0][1], results[1][1]));
  };
  both([&](const Tensors& in) { return convolve({in[0], taps}, positions, true); });
  const at::Tensor x = random({65, 40}), wide_x = x.to(at::kFloat), weights = random({40});
  both([&](const Tensors& in) { return gated_norm(x, in[0], weight, kEps); });
  both([&](const Tensors& in) { return norm_of_gated(wide_x, in[0], weights, 4, kEps); });
}

// Goal: other tokens in the first document change no bit of the second's results.
TEST_P(MixerPasses, NoDocumentSeesAnother) {
  for (const int64_t first : {1, 2, 31, 33, 100}) {
    const at::Tensor positions = positions_of({first, 70});
    Tensors values{random({first + 70, 20}), random({20, 1, 4}), random({20})};
    at::Tensor grad = random({first + 70, 20});
    const auto own = [&](const Tensors& in) { return convolve(in, positions, true); };
    const Tensors before = run(own, values, grad);
    values[0] = at::cat({random({first, 20}) * 100.0, values[0].narrow(0, first, 70)});
    grad = at::cat({random({first, 20}) * 100.0, grad.narrow(0, first, 70)});
    const Tensors after = run(own, values, grad);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(before[i].narrow(0, first, 70), after[i].narrow(0, first, 70)))
          << i << ", " << first;
      EXPECT_FALSE(at::equal(before[i].narrow(0, 0, first), after[i].narrow(0, 0, first)));
    }
  }
}

// Goal: the norm by heads and the norm by groups, and their gradients, agree with autograd.
TEST_P(MixerPasses, NormsAgreeWithAutograd) {
  const at::Tensor grad = random({300, 120});
  const Tensors heads{random({300, 120}), random({300, 120}), random({40})};
  const auto by_heads = [](const Tensors& in) { return gated_norm(in[0], in[1], in[2], kEps); };
  expect_close(run(by_heads, heads, grad),
               run(plain_gated_norm, in_double(heads), grad.to(at::kDouble)), "heads");
  const Tensors groups{at::randn({300, 120}), random({300, 120}), random({120})};
  const auto by_groups = [](const Tensors& in) {
    return norm_of_gated(in[0], in[1], in[2], 3, kEps);
  };
  const auto plain = [](const Tensors& in) { return plain_norm_of_gated(in, 3); };
  expect_close(run(by_groups, groups, grad), run(plain, in_double(groups), grad.to(at::kDouble)),
               "groups");
}

// Goal: inputs without a gradient get none, and the others keep their bits.
TEST_P(MixerPasses, FrozenWeightsGetNoGradient) {
  const at::AutoGradMode grad_mode(true);
  const at::Tensor positions = positions_of({50}), grad = random({50, 24});
  const Tensors values{random({50, 24}), random({24, 1, 4}), random({24})};
  const auto own = [&](const Tensors& in) { return convolve(in, positions, true); };
  const Tensors all = run(own, values, grad);
  for (size_t wanted = 0; wanted < 3; ++wanted) {
    Tensors in = values;
    in[wanted] = values[wanted].detach().clone().requires_grad_(true);
    EXPECT_TRUE(
        at::equal(torch::autograd::grad({own(in)}, {in[wanted]}, {grad})[0], all[wanted + 1]))
        << wanted;
  }
}

// Goal: results have the same bits with 1, 2 and 5 threads.
TEST_P(MixerPasses, BitsDoNotDependOnThreads) {
  const std::vector<int64_t> lengths = {1, 700, 3, 1500};
  const at::Tensor positions = positions_of(lengths), grad = random({2204, 96});
  const Tensors convolved{random({2204, 96}), random({96, 1, 4}), random({96})};
  const Tensors heads{random({2204, 96}), random({2204, 96}), random({32})};
  const Tensors groups{at::randn({2204, 96}), random({2204, 96}), random({96})};
  const int threads = at::get_num_threads();
  std::vector<Tensors> results;
  for (const int some : {1, 2, 5}) {
    at::set_num_threads(some);
    Tensors all;
    const auto add = [&](const Pass& pass, const Tensors& values) {
      for (const at::Tensor& one : run(pass, values, grad)) all.push_back(one);
    };
    add([&](const Tensors& in) { return convolve(in, positions, true); }, convolved);
    add([](const Tensors& in) { return gated_norm(in[0], in[1], in[2], kEps); }, heads);
    add([](const Tensors& in) { return norm_of_gated(in[0], in[1], in[2], 3, kEps); }, groups);
    results.push_back(all);
  }
  at::set_num_threads(threads);
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(at::equal(results[1][i], results[0][i])) << i;
    EXPECT_TRUE(at::equal(results[2][i], results[0][i])) << i;
  }
}

// The GPU agrees with the CPU within rounding, and gives the same bits twice.
class MixerPassesGpu : public MixerPasses {
 protected:
  void SetUp() override {
    LONGSHORE_NEEDS_GPU();
    prepare_cuda(0);
    at::manual_seed(11);
  }
  void compare(const Pass& pass, const Tensors& values, const at::Tensor& grad) const {
    const auto on = [&](at::Device device) {
      Tensors copies;
      for (const at::Tensor& value : values) copies.push_back(value.to(device));
      return run(pass, copies, grad.to(device));
    };
    const auto reference = [&] {
      const fakes::CpuBranches branches;
      return on(at::kCPU);
    };
    const Tensors expected = reference(), got = on(gpu_tensors(0)), again = on(gpu_tensors(0));
    expect_close(got, expected, "GPU");
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], again[i])) << i;
  }
};

// The convolution on a GPU agrees with the CPU and repeats.
TEST_P(MixerPassesGpu, Convolution) {
  const at::Tensor positions = positions_of({1, 2, 700, 2000});
  for (const int64_t channels : {77, 1536}) {
    compare([&](const Tensors& in) { return convolve(in, positions.to(in[0].device()), true); },
            {random({2703, channels}), random({channels, 1, 4}), random({channels})},
            random({2703, channels}));
  }
}

// The norms on a GPU agree with the CPU and repeat.
TEST_P(MixerPassesGpu, Norms) {
  for (const int64_t width : {30, 128}) {
    const at::Tensor grad = random({500, 6 * width});
    compare([](const Tensors& in) { return gated_norm(in[0], in[1], in[2], kEps); },
            {random({500, 6 * width}), random({500, 6 * width}), random({width})}, grad);
    compare([](const Tensors& in) { return norm_of_gated(in[0], in[1], in[2], 3, kEps); },
            {at::randn({500, 6 * width}), random({500, 6 * width}), random({6 * width})}, grad);
  }
}

std::string dtype_name(const testing::TestParamInfo<at::ScalarType>& info) {
  return info.param == at::kFloat ? "fp32" : "bf16";
}
INSTANTIATE_TEST_SUITE_P(Dtypes, MixerPasses, testing::Values(at::kFloat, at::kBFloat16),
                         dtype_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, MixerPassesGpu, testing::Values(at::kFloat, at::kBFloat16),
                         dtype_name);

}  // namespace
}  // namespace longshore
