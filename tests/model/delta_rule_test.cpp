// Gated DeltaNet in chunks agrees with the recurrence that defines it.
#include "model/mixers/delta_rule.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/gpu_tensors.h"
#include "tests/fakes/cpu_branches.h"

namespace longshore {
namespace {

constexpr DeltaSpec kSpec{
    .key_heads = 2, .value_heads = 4, .key_dim = 6, .value_dim = 5, .taps = 4};

std::vector<int64_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts{0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

std::vector<at::Tensor> random_inputs(int64_t positions) {
  at::manual_seed(7);
  const auto normal = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  return {normal({positions, kSpec.mixed_width()}), normal({positions, kSpec.value_heads}),
          normal({positions, kSpec.value_heads}), normal({kSpec.value_heads}) - 1.5,
          normal({kSpec.value_heads}) * 0.3};
}

std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& values, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) {
    leaves.push_back(value.to(dtype, false, /*copy=*/true).requires_grad_(true));
  }
  return leaves;
}

at::Tensor unit_vectors(const at::Tensor& x) {
  return x * (x.square().sum(-1, true) + 1e-6).rsqrt();
}

// The recurrence, token by token, in the dtype of the inputs.
at::Tensor plain_rule(const std::vector<at::Tensor>& in, const std::vector<int64_t>& starts) {
  const int64_t keys = kSpec.key_width(), times = kSpec.value_heads / kSpec.key_heads;
  const auto heads = [&](int64_t first, int64_t width, int64_t count) {
    return in[0].narrow(1, first, width).view({in[0].size(0), count, -1});
  };
  const at::Tensor q = unit_vectors(heads(0, keys, kSpec.key_heads)).repeat_interleave(times, 1) /
                       std::sqrt(static_cast<double>(kSpec.key_dim));
  const at::Tensor k = unit_vectors(heads(keys, keys, kSpec.key_heads)).repeat_interleave(times, 1);
  const at::Tensor v = heads(2 * keys, kSpec.value_width(), kSpec.value_heads);
  const at::Tensor beta = at::sigmoid(in[1]).unsqueeze(-1);
  const at::Tensor kept = (-in[3].exp() * at::softplus(in[2] + in[4])).exp().view({-1, 4, 1, 1});
  std::vector<at::Tensor> out;
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    at::Tensor state =
        at::zeros({kSpec.value_heads, kSpec.key_dim, kSpec.value_dim}, in[0].options());
    for (int64_t t = starts[d]; t < starts[d + 1]; ++t) {
      state = state * kept[t];
      const at::Tensor known = at::matmul(k[t].unsqueeze(1), state).squeeze(1);
      state = state + k[t].unsqueeze(2) * (beta[t] * (v[t] - known)).unsqueeze(1);
      out.push_back(at::matmul(q[t].unsqueeze(1), state).flatten());
    }
  }
  return at::stack(out);
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

// Goal: documents of one token, of less than a chunk, of whole chunks and of more, in several
// blocks, give the values and gradients of the recurrence.
TEST(DeltaRule, AgreesWithTheRecurrenceInValuesAndGradients) {
  const std::vector<int64_t> starts = starts_of({1, 130, 33, 64, 2, 470, 1, 65, 5, 17, 64});
  const std::vector<at::Tensor> values = random_inputs(starts.back());
  const std::vector<at::Tensor> plain = leaves_of(values, at::kDouble);
  const std::vector<at::Tensor> own = leaves_of(values, at::kFloat);
  const at::AutoGradMode grad_mode(true);
  const at::Tensor expected = plain_rule(plain, starts);
  const at::Tensor got = delta_rule({own[0], own[1], own[2], own[3], own[4]}, kSpec, starts);
  EXPECT_LE(relative_error(got.detach(), expected.detach()), 2e-6);
  const at::Tensor grad = at::randn(expected.sizes(), at::kDouble);
  const auto right = torch::autograd::grad({expected}, plain, {grad});
  const auto found = torch::autograd::grad({got}, own, {grad.to(at::kFloat)});
  for (size_t i = 0; i < right.size(); ++i) {
    EXPECT_LE(relative_error(found[i], right[i]), 1e-5) << i;
  }
}

// Goal: a state that decays to nothing within a chunk gives no infinity and no wrong gradient. The
// sums of decay are above 200, so their differences have few digits in fp32.
TEST(DeltaRule, FastDecayStaysFinite) {
  const std::vector<int64_t> starts = starts_of({150, 3});
  std::vector<at::Tensor> values = random_inputs(starts.back());
  values[3] = values[3] * 0.0 + 1.5;
  const std::vector<at::Tensor> own = leaves_of(values, at::kFloat);
  const std::vector<at::Tensor> plain = leaves_of(values, at::kDouble);
  const at::AutoGradMode grad_mode(true);
  const at::Tensor got = delta_rule({own[0], own[1], own[2], own[3], own[4]}, kSpec, starts);
  const at::Tensor expected = plain_rule(plain, starts);
  EXPECT_LE(relative_error(got.detach(), expected.detach()), 2e-5);
  const auto right = torch::autograd::grad({expected.sum()}, plain);
  const auto found = torch::autograd::grad({got.sum()}, own);
  for (size_t i = 0; i < right.size(); ++i) {
    EXPECT_LE(relative_error(found[i], right[i]), 2e-4) << i;
  }
}

// The result of the documents in these rows of `values`, and the gradients by position.
std::vector<at::Tensor> result_of(const std::vector<at::Tensor>& values, int64_t begin,
                                  const std::vector<int64_t>& lengths) {
  const std::vector<int64_t> starts = starts_of(lengths);
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < values.size(); ++i) {
    rows.push_back(i < 3 ? values[i].narrow(0, begin, starts.back()) : values[i]);
  }
  const std::vector<at::Tensor> own = leaves_of(rows, at::kFloat);
  const at::AutoGradMode grad_mode(true);
  const at::Tensor got = delta_rule({own[0], own[1], own[2], own[3], own[4]}, kSpec, starts);
  std::vector<at::Tensor> all = torch::autograd::grad({got.square().sum()}, own);
  all.push_back(got.detach());
  return all;
}

// Goal: the number of threads changes no bit. Threads share key heads and documents, of which there
// are fewer and more than threads.
TEST(DeltaRule, TheNumberOfThreadsChangesNoBit) {
  const std::vector<at::Tensor> values = random_inputs(300);
  const int before = at::get_num_threads();
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{300}, std::vector<int64_t>{70, 1, 64, 100, 65}}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const int threads : {1, 2, 7}) {
      at::set_num_threads(threads);
      results.push_back(result_of(values, 0, lengths));
    }
    at::set_num_threads(before);
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
      EXPECT_TRUE(at::equal(results[0][i], results[2][i])) << i;
    }
  }
}

// Goal: while a probe asks for a GPU's way, the rule is computed in blocks, with the same values.
TEST(DeltaRule, AProbeMayAskForBlocks) {
  const std::vector<at::Tensor> values = random_inputs(200);
  const fakes::CpuBranches on_cpu;
  const std::vector<at::Tensor> heads = result_of(values, 0, {150, 50});
  std::vector<at::Tensor> blocks;
  {
    const AbsentGpu absent;
    blocks = result_of(values, 0, {150, 50});
  }
  EXPECT_FALSE(at::equal(heads.back(), blocks.back()));
  for (size_t i = 0; i < heads.size(); ++i) {
    EXPECT_LE(relative_error(blocks[i], heads[i].to(at::kDouble)), 2e-5) << i;
  }
  EXPECT_TRUE(at::equal(result_of(values, 0, {150, 50}).back(), heads.back()));
}

// Goal: on the CPU a document has the same bits alone and beside others.
TEST(DeltaRule, ADocumentHasTheSameBitsAlone) {
  const std::vector<at::Tensor> values = random_inputs(300);
  const fakes::CpuBranches on_cpu;
  const std::vector<at::Tensor> together = result_of(values, 0, {90, 130, 80});
  const std::vector<at::Tensor> alone = result_of(values, 90, {130});
  for (const size_t i : {size_t{0}, size_t{1}, size_t{2}, size_t{5}}) {
    EXPECT_TRUE(at::equal(together[i].narrow(0, 90, 130), alone[i])) << i;
  }
}

}  // namespace
}  // namespace longshore
