// Attention over documents equals a plain softmax over all positions.
#include "model/attention/document_attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "device/compute_threads.h"
#include "device/gpu_tensors.h"
#include "model/units/differentiable_ops.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/model/allocation_meter.h"

namespace longshore {
namespace {

struct Tensors {
  at::Tensor q, k, v, grad;
};

Tensors random_tensors(int64_t positions, const AttentionShape& shape) {
  at::manual_seed(7);
  const int64_t q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
  return {at::randn({positions, q}), at::randn({positions, kv}), at::randn({positions, kv}),
          at::randn({positions, q})};
}

// Computes attention in fp64 with a matrix of all positions by all positions.
at::Tensor plain_attention(const Tensors& in, const AttentionShape& shape,
                           const std::vector<int64_t>& starts, const at::Tensor& sinks = {}) {
  const int64_t positions = in.q.size(0), group = shape.heads / shape.kv_heads;
  const auto heads = [&](const at::Tensor& x, int64_t count) {
    return x.to(at::kDouble).view({positions, count, shape.head_dim}).permute({1, 0, 2});
  };
  const at::Tensor k = heads(in.k, shape.kv_heads).repeat_interleave(group, 0);
  const at::Tensor v = heads(in.v, shape.kv_heads).repeat_interleave(group, 0);
  at::Tensor document = at::zeros({positions}, at::kLong);
  for (size_t i = 1; i + 1 < starts.size(); ++i) document.slice(0, starts[i]).add_(1);
  const at::Tensor i = at::arange(positions).unsqueeze(1), j = at::arange(positions).unsqueeze(0);
  at::Tensor visible = (j <= i).logical_and(document.unsqueeze(1) == document.unsqueeze(0));
  if (shape.window > 0) visible = visible.logical_and(j > i - shape.window);
  at::Tensor scores = heads(in.q, shape.heads).matmul(k.transpose(1, 2)) * shape.scale;
  if (shape.cap != 0.0) scores = (scores / shape.cap).tanh() * shape.cap;
  scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  if (sinks.defined()) {
    scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, positions, 1})}, -1);
  }
  const at::Tensor weights = scores.softmax(-1).narrow(-1, 0, positions);
  return weights.matmul(v).permute({1, 0, 2}).reshape({positions, -1});
}

// The results are fp32 against fp64; the kernel's exponential is right to about 20 ulp.
constexpr double kTolerance = 2e-5;

void expect_close(const at::Tensor& got, const at::Tensor& expected, const char* what) {
  const double error = (got.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(error, kTolerance * std::max(1.0, expected.abs().max().item<double>())) << what;
}

void compare_with_plain(const AttentionShape& shape, const std::vector<int64_t>& starts) {
  at::set_num_threads(1);
  Tensors in = random_tensors(starts.back(), shape);
  const AttentionResult result = attend_forward(in.q, in.k, in.v, shape, starts);
  const auto grads = attend_backward(in.grad, in.q, in.k, in.v, result, shape, starts);
  Tensors exact = in;
  exact.q = in.q.to(at::kDouble).requires_grad_(true);
  exact.k = in.k.to(at::kDouble).requires_grad_(true);
  exact.v = in.v.to(at::kDouble).requires_grad_(true);
  const at::Tensor expected = plain_attention(exact, shape, starts);
  expect_close(result.out, expected.detach(), "out");
  expected.backward(in.grad.to(at::kDouble));
  expect_close(grads[0], exact.q.grad(), "gradient of q");
  expect_close(grads[1], exact.k.grad(), "gradient of k");
  expect_close(grads[2], exact.v.grad(), "gradient of v");
}

// Runs what tests capped scores as CPUs compute them, and as GPUs do.
template <typename Body>
void in_both_forms(const Body& body) {
  {
    const fakes::CpuBranches on_cpu;
    body();
  }
  const AbsentGpu gpu;
  body();
}

// Goal: a sink takes its share of the weights and has a gradient, with groups and windows.
TEST(DocumentAttention, SinksTakeTheirShare) {
  at::set_num_threads(1);
  const std::vector<int64_t> starts{0, 1, 20, 64};
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 4, .kv_heads = 4, .head_dim = 8, .scale = 0.3},
        AttentionShape{.heads = 6, .kv_heads = 2, .head_dim = 8, .scale = 0.3},
        AttentionShape{.heads = 6, .kv_heads = 2, .head_dim = 8, .window = 5, .scale = 0.3}}) {
    const Tensors in = random_tensors(starts.back(), shape);
    const at::Tensor sinks = at::randn({shape.heads}) * 2.0;
    const AttentionResult result = attend_forward(in.q, in.k, in.v, shape, starts, sinks);
    const auto grads = attend_backward(in.grad, in.q, in.k, in.v, result, shape, starts, sinks);
    ASSERT_EQ(grads.size(), 4u);
    Tensors exact = in;
    for (at::Tensor* tensor : {&exact.q, &exact.k, &exact.v}) {
      *tensor = tensor->to(at::kDouble).requires_grad_(true);
    }
    const at::Tensor exact_sinks = sinks.to(at::kDouble).requires_grad_(true);
    const at::Tensor expected = plain_attention(exact, shape, starts, exact_sinks);
    expect_close(result.out, expected.detach(), "out");
    expected.backward(in.grad.to(at::kDouble));
    expect_close(grads[0], exact.q.grad(), "gradient of q");
    expect_close(grads[1], exact.k.grad(), "gradient of k");
    expect_close(grads[2], exact.v.grad(), "gradient of v");
    expect_close(grads[3], exact_sinks.grad(), "gradient of the sinks");
  }
}

// A result that was kept gives the bits of a result that was computed again: with groups, windows,
// sinks and a cap, over many documents.
TEST(DocumentAttention, AKeptResultGivesTheSameGradients) {
  at::set_num_threads(1);
  const std::vector<int64_t> starts{0, 1, 20, 21, 700, 703};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const AttentionShape& shape :
         {AttentionShape{.heads = 3, .kv_heads = 3, .head_dim = 5, .scale = 0.3},
          AttentionShape{.heads = 6, .kv_heads = 2, .head_dim = 8, .scale = 0.3},
          AttentionShape{.heads = 6, .kv_heads = 2, .head_dim = 8, .window = 9, .scale = 0.3},
          AttentionShape{.heads = 6, .kv_heads = 2, .head_dim = 8, .scale = 0.3, .cap = 2.0}}) {
      const bool capped = shape.cap != 0.0;
      Tensors in = random_tensors(starts.back(), shape);
      for (at::Tensor* one : {&in.q, &in.k, &in.v, &in.grad}) *one = one->to(dtype);
      const at::Tensor sinks = capped ? at::Tensor() : at::randn({shape.heads}).to(dtype);
      const AttentionResult result = attend_forward(in.q, in.k, in.v, shape, starts, sinks);
      AttentionPlace place{.out = at::empty_like(in.q),
                           .sums = at::full({starts.back(), shape.heads}, 1e9)};
      keep_attention(result, place, shape, starts);
      const AttentionResult kept = kept_attention(place, shape, starts);
      EXPECT_TRUE(at::equal(kept.out, result.out));
      ASSERT_EQ(kept.sums.size(), result.sums.size());
      const auto again = attend_backward(in.grad, in.q, in.k, in.v, result, shape, starts, sinks);
      const auto grads = attend_backward(in.grad, in.q, in.k, in.v, kept, shape, starts, sinks);
      ASSERT_EQ(grads.size(), again.size());
      for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::equal(grads[i], again[i])) << i;
    }
  }
}

// Goal: with a filled place no attention is computed, and its gradients flow to q, k and v.
TEST(DocumentAttention, AFilledPlaceIsNotComputedAgain) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8, .scale = 0.3};
  const std::vector<int64_t> starts{0, 7, 30};
  Tensors in = random_tensors(starts.back(), shape);
  AttentionPlace place{.out = at::empty_like(in.q),
                       .sums = at::empty({starts.back(), shape.heads})};
  for (at::Tensor* leaf : {&in.q, &in.k, &in.v}) leaf->requires_grad_(true);
  const auto gradients = [&] {
    const at::Tensor out = attend(in.q, in.k, in.v, shape, starts, {}, place);
    return torch::autograd::grad({out}, {in.q, in.k, in.v}, {in.grad});
  };
  const auto computed = gradients();
  place.filled = true;
  const auto kept = gradients();
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], computed[i])) << i;
  place.out.fill_(3.0);
  const at::Tensor out = attend(in.q, in.k, in.v, shape, starts, {}, place);
  EXPECT_TRUE(at::equal(out, place.out)) << "what is kept is returned";
}

// Query heads of a group share their key and value head.
TEST(DocumentAttention, GroupedHeadsShareTheirKeys) {
  compare_with_plain({.heads = 6, .kv_heads = 2, .head_dim = 8, .scale = 0.3}, {0, 40});
  compare_with_plain({.heads = 4, .kv_heads = 1, .head_dim = 8, .scale = 0.3}, {0, 40});
  compare_with_plain({.heads = 3, .kv_heads = 3, .head_dim = 5, .scale = 0.3}, {0, 40});
}

// Goal: groups that one thread takes together, in blocks of queries and keys, and with a rest.
TEST(DocumentAttention, ManyHeadsShareTheirKeys) {
  compare_with_plain({.heads = 32, .kv_heads = 8, .head_dim = 8, .scale = 0.3}, {0, 300, 301});
  compare_with_plain({.heads = 24, .kv_heads = 8, .head_dim = 7, .window = 50, .scale = 0.3},
                     {0, 290, 301});
  compare_with_plain({.heads = 28, .kv_heads = 4, .head_dim = 8, .scale = 0.3}, {0, 200, 300});
  compare_with_plain({.heads = 14, .kv_heads = 2, .head_dim = 8, .scale = 0.3}, {0, 200});
  compare_with_plain({.heads = 150, .kv_heads = 1, .head_dim = 3, .scale = 0.3}, {0, 20});
}

// Goal: the number of threads changes no bit, whether parts share key heads or not.
TEST(DocumentAttention, ThreadsChangeNoBit) {
  const std::vector<int64_t> starts{0, 5, 300, 640};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t kv_heads : {2, 8}) {
      const AttentionShape shape{
          .heads = 16, .kv_heads = kv_heads, .head_dim = 16, .window = 200, .scale = 0.3};
      Tensors in = random_tensors(starts.back(), shape);
      for (at::Tensor* one : {&in.q, &in.k, &in.v, &in.grad}) *one = one->to(dtype);
      const at::Tensor sinks = at::randn({shape.heads});
      const auto run = [&](int threads) {
        at::set_num_threads(threads);
        const AttentionResult result = attend_forward(in.q, in.k, in.v, shape, starts, sinks);
        auto all = attend_backward(in.grad, in.q, in.k, in.v, result, shape, starts, sinks);
        all.push_back(result.out);
        return all;
      };
      const auto one = run(1), three = run(3);
      at::set_num_threads(1);
      for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
    }
  }
}

// No query sees a key of another document.
TEST(DocumentAttention, NeverCrossesADocumentsBorder) {
  compare_with_plain({.heads = 4, .kv_heads = 2, .head_dim = 8, .scale = 0.3},
                     {0, 1, 20, 21, 60, 64});
}

// A window counts the token itself.
TEST(DocumentAttention, AWindowCountsTheTokenItself) {
  // A window of one sees the token alone: the result is v.
  const AttentionShape shape{.heads = 2, .kv_heads = 2, .head_dim = 4, .window = 1, .scale = 1.0};
  const Tensors in = random_tensors(9, shape);
  EXPECT_TRUE(at::allclose(attend_forward(in.q, in.k, in.v, shape, {0, 9}).out, in.v));
}

// Windows of any width agree with the plain softmax, across pieces of queries.
TEST(DocumentAttention, AWindowWorksInPiecesOfQueries) {
  for (const int64_t window : {1, 7, 511, 512, 513, 700, 1299, 1300, 5000}) {
    SCOPED_TRACE(window);
    compare_with_plain({.heads = 2, .kv_heads = 1, .head_dim = 4, .window = window, .scale = 0.5},
                       {0, 1300, 1320});
  }
}

// A window wider than the document changes no bit.
TEST(DocumentAttention, AWindowWiderThanTheDocumentChangesNoBit) {
  const AttentionShape full{.heads = 4, .kv_heads = 2, .head_dim = 8, .scale = 0.3};
  AttentionShape windowed = full;
  windowed.window = 600;
  const Tensors in = random_tensors(600, full);
  EXPECT_TRUE(at::equal(attend_forward(in.q, in.k, in.v, full, {0, 600}).out,
                        attend_forward(in.q, in.k, in.v, windowed, {0, 600}).out));
}

// Capped scores equal those of all positions at once, in blocks and in a GPU's pieces.
TEST(DocumentAttention, CappedScoresAreThoseOfAllPositionsAtOnce) {
  in_both_forms([] {
    for (const int64_t window : {0, 1, 7, 127, 128, 129, 200, 5000}) {
      for (const double cap : {0.7, 20.0}) {
        SCOPED_TRACE(std::to_string(window) + " capped at " + std::to_string(cap));
        compare_with_plain(
            {.heads = 6, .kv_heads = 2, .head_dim = 8, .window = window, .scale = 0.5, .cap = cap},
            {0, 1, 300, 428, 440});
      }
    }
    compare_with_plain({.heads = 3, .kv_heads = 3, .head_dim = 5, .scale = 0.3, .cap = 1.0},
                       {0, 40});
  });
}

// Goal: on a GPU memory of capped scores grows linearly with length, and hardly with what a window
// hides. On a CPU no attention takes memory for scores.
TEST(DocumentAttention, CappedScoresTakeMemoryInLineWithLength) {
  const auto taken = [](int64_t length, int64_t window) {
    const AttentionShape shape{
        .heads = 4, .kv_heads = 2, .head_dim = 4, .window = window, .scale = 0.5, .cap = 2.0};
    const Tensors in = random_tensors(length, shape);
    const AllocationMeter meter;
    const AttentionResult result = attend_forward(in.q, in.k, in.v, shape, {0, length});
    attend_backward(in.grad, in.q, in.k, in.v, result, shape, {0, length});
    return static_cast<double>(meter.peak());
  };
  {
    const AbsentGpu gpu;
    EXPECT_LE(taken(4096, 0), 2.1 * taken(2048, 0));
    EXPECT_LE(taken(4096, 256), 0.25 * taken(4096, 0));
  }
  // Results, gradients and sums; blocks of each thread; gradients of keys by part.
  const fakes::CpuBranches on_cpu;
  const double rows = 4096.0 * 4.0 * (4 * 4 * 2 + 2 * 4 * 2 + 4 + 4 * 4 * 2);
  const double blocks = parallel_threads() * 4.0 * (4 * 128 * 256 + 6 * 128 * 4 + 5 * 128 + 256);
  EXPECT_LE(taken(4096, 0), rows + blocks + 65536.0);
}

// Query, key and value may be parts of one matrix with capped scores.
TEST(DocumentAttention, CappedScoresOfStridedRows) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8, .scale = 0.5, .cap = 2.0};
  const Tensors in = random_tensors(150, shape);
  const auto parts = at::cat({in.q, in.k, in.v}, 1).split_with_sizes({32, 16, 16}, 1);
  const auto run = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const AttentionResult result = attend_forward(q, k, v, shape, {0, 20, 150});
    auto all = attend_backward(in.grad, q, k, v, result, shape, {0, 20, 150});
    all.push_back(result.out);
    return all;
  };
  in_both_forms([&] {
    const auto expected = run(in.q, in.k, in.v), got = run(parts[0], parts[1], parts[2]);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::allclose(got[i], expected[i])) << i;
  });
}

// With capped scores a document's bits do not depend on its neighbours.
TEST(DocumentAttention, CappedBitsOfADocumentDoNotDependOnItsNeighbours) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape{
        .heads = 4, .kv_heads = 2, .head_dim = 8, .window = 90, .scale = 0.3, .cap = 2.0};
    const Tensors in = random_tensors(370, shape);
    const auto run = [&](int64_t first, const std::vector<int64_t>& starts) {
      const auto part = [&](const at::Tensor& x) { return x.slice(0, first).to(dtype); };
      const at::Tensor q = part(in.q), k = part(in.k), v = part(in.v);
      const AttentionResult result = attend_forward(q, k, v, shape, starts);
      auto all = attend_backward(part(in.grad), q, k, v, result, shape, starts);
      all.push_back(result.out);
      return all;
    };
    in_both_forms([&] {
      const auto together = run(0, {0, 70, 370}), alone = run(70, {0, 300});
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(at::equal(together[i].slice(0, 70), alone[i])) << i << " " << dtype;
      }
    });
  }
}

// A document's bits do not depend on its neighbours.
TEST(DocumentAttention, ADocumentsBitsDoNotDependOnItsNeighbours) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape{
        .heads = 14, .kv_heads = 2, .head_dim = 8, .window = 30, .scale = 0.3};
    const Tensors in = random_tensors(370, shape);
    const at::Tensor sinks = at::randn({shape.heads});
    const auto run = [&](int64_t first, const std::vector<int64_t>& starts) {
      const auto part = [&](const at::Tensor& x) { return x.slice(0, first).to(dtype); };
      const at::Tensor q = part(in.q), k = part(in.k), v = part(in.v);
      const AttentionResult result = attend_forward(q, k, v, shape, starts, sinks);
      auto all = attend_backward(part(in.grad), q, k, v, result, shape, starts, sinks);
      all.back() = result.out;  // sinks belong to all documents
      return all;
    };
    const auto together = run(0, {0, 70, 370}), alone = run(70, {0, 300});
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(at::equal(together[i].slice(0, 70), alone[i])) << i << " " << dtype;
    }
  }
}

}  // namespace
}  // namespace longshore
