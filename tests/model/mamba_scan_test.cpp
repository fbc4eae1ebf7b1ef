// Mamba-2 in chunks agrees with the recurrence that defines it, and so does the norm behind it.
#include "model/mixers/mamba_scan.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/mixers/mixer_passes.h"

namespace longshore {
namespace {

MambaSpec spec() {
  MambaSpec spec;
  spec.heads = 4;
  spec.head_dim = 5;
  spec.groups = 2;
  spec.state = 3;
  spec.least_step = 0.4;  // above a fifth of the steps
  return spec;
}

std::vector<int64_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts{0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

std::vector<at::Tensor> random_inputs(int64_t positions, double rate) {
  at::manual_seed(7);
  const auto normal = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  return {normal({positions, spec().mixed_width()}), normal({positions, spec().heads}),
          normal({spec().heads}) * 0.5 + rate, normal({spec().heads}) * 0.3,
          normal({spec().heads})};
}

std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& values, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) {
    leaves.push_back(value.to(dtype, false, /*copy=*/true).requires_grad_(true));
  }
  return leaves;
}

// The recurrence, token by token, in the dtype of the inputs.
at::Tensor plain_scan(const std::vector<at::Tensor>& in, const std::vector<int64_t>& starts) {
  const MambaSpec sizes = spec();
  const int64_t inner = sizes.inner_width(), keyed = sizes.groups * sizes.state;
  const auto keys = [&](int64_t first) {
    return in[0]
        .narrow(1, first, keyed)
        .view({-1, sizes.groups, sizes.state})
        .repeat_interleave(sizes.heads / sizes.groups, 1);
  };
  const at::Tensor x = in[0].narrow(1, 0, inner).view({-1, sizes.heads, sizes.head_dim});
  const at::Tensor b = keys(inner), c = keys(inner + keyed);
  const at::Tensor step =
      at::softplus(in[1] + in[3]).clamp_min(sizes.least_step).view({-1, sizes.heads, 1, 1});
  const at::Tensor kept = (step * -in[2].exp().view({-1, 1, 1})).exp();
  std::vector<at::Tensor> out;
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    at::Tensor state = at::zeros({sizes.heads, sizes.head_dim, sizes.state}, in[0].options());
    for (int64_t t = starts[d]; t < starts[d + 1]; ++t) {
      state = kept[t] * state + step[t] * x[t].unsqueeze(2) * b[t].unsqueeze(1);
      out.push_back(((state * c[t].unsqueeze(1)).sum(2) + in[4].unsqueeze(1) * x[t]).flatten());
    }
  }
  return at::stack(out);
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

void expect_the_recurrence(const std::vector<int64_t>& starts, double rate, double tolerance) {
  const std::vector<at::Tensor> values = random_inputs(starts.back(), rate);
  const std::vector<at::Tensor> plain = leaves_of(values, at::kDouble);
  const std::vector<at::Tensor> own = leaves_of(values, at::kFloat);
  const at::AutoGradMode grad_mode(true);
  const at::Tensor expected = plain_scan(plain, starts);
  const at::Tensor got = mamba_scan({own[0], own[1], own[2], own[3], own[4]}, spec(), starts);
  EXPECT_LE(relative_error(got.detach(), expected.detach()), tolerance);
  const at::Tensor grad = at::randn(expected.sizes(), at::kDouble);
  const auto right = torch::autograd::grad({expected}, plain, {grad});
  const auto found = torch::autograd::grad({got}, own, {grad.to(at::kFloat)});
  for (size_t i = 0; i < right.size(); ++i) {
    EXPECT_LE(relative_error(found[i], right[i]), 10.0 * tolerance) << i;
  }
}

// Goal: documents of one token, of less than a chunk, of whole chunks and of more, in several
// blocks, give the values and gradients of the recurrence.
TEST(MambaScan, AgreesWithTheRecurrenceInValuesAndGradients) {
  expect_the_recurrence(starts_of({1, 130, 33, 64, 2, 550, 1, 65, 5, 17, 64}), -1.0, 2e-6);
}

// Goal: a state that decays to nothing within a chunk gives no infinity and no wrong gradient.
TEST(MambaScan, FastDecayStaysFinite) {
  expect_the_recurrence(starts_of({150, 3}), 2.0, 2e-5);
}

// Goal: the norm behind the gate, over each group, has the values and gradients of its formula.
TEST(MambaScan, TheNormIsOverTheGatedValuesOfAGroup) {
  constexpr int64_t kRows = 7, kWidth = 12, kGroups = 3;
  constexpr double kEps = 1e-3;
  at::manual_seed(3);
  const std::vector<at::Tensor> values{at::randn({kRows, kWidth}, at::kDouble),
                                       at::randn({kRows, kWidth}, at::kDouble),
                                       at::randn({kWidth}, at::kDouble)};
  const std::vector<at::Tensor> plain = leaves_of(values, at::kDouble);
  const std::vector<at::Tensor> own = leaves_of(values, at::kFloat);
  const at::AutoGradMode grad_mode(true);
  const at::Tensor gated = (plain[0] * at::silu(plain[1])).view({kRows, kGroups, -1});
  const at::Tensor normed = gated * (gated.square().mean(-1, true) + kEps).rsqrt();
  const at::Tensor expected = normed.flatten(1) * plain[2];
  const at::Tensor got = norm_of_gated(own[0], own[1], own[2], kGroups, kEps);
  EXPECT_LE(relative_error(got.detach(), expected.detach()), 1e-6);
  const at::Tensor grad = at::randn(expected.sizes(), at::kDouble);
  const auto right = torch::autograd::grad({expected}, plain, {grad});
  const auto found = torch::autograd::grad({got}, own, {grad.to(at::kFloat)});
  for (size_t i = 0; i < right.size(); ++i) {
    EXPECT_LE(relative_error(found[i], right[i]), 1e-5) << i;
  }
}

}  // namespace
}  // namespace longshore
