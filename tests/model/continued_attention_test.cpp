// Attention over kept keys and values is that over whole documents, and a row has the same bits
// however its sequence is divided among calls and whatever is beside it.
#include "model/attention/continued_attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/fakes/cpu_branches.h"

namespace longshore {
namespace {

struct Example {
  std::string name;
  AttentionShape shape;
  bool sinks = false;
};

const std::vector<Example> kExamples = {
    {"one head", {.heads = 1, .kv_heads = 1, .head_dim = 16, .scale = 0.25}},
    {"grouped", {.heads = 8, .kv_heads = 2, .head_dim = 32, .scale = 0.2}},
    {"many heads", {.heads = 24, .kv_heads = 1, .head_dim = 20, .scale = 0.2}},
    {"window", {.heads = 4, .kv_heads = 4, .head_dim = 24, .window = 70, .scale = 0.2}},
    {"short window", {.heads = 6, .kv_heads = 2, .head_dim = 16, .window = 5, .scale = 0.25}},
    {"cap", {.heads = 4, .kv_heads = 2, .head_dim = 16, .scale = 0.5, .cap = 3.0}},
    {"sinks", {.heads = 8, .kv_heads = 2, .head_dim = 16, .window = 33, .scale = 0.25}, true},
};
constexpr int64_t kPositions = 203;

// Sets the number of threads while it lives.
struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { at::set_num_threads(before); }
  int before;
};

// A sequence of an example, and the caches for it.
struct Sequence {
  at::Tensor q, k, v;
  at::Tensor keys, values;
  int64_t done = 0;
};

// `spare` are the rows of the cache beyond those of the window.
Sequence make_sequence(const AttentionShape& shape, at::ScalarType type, uint64_t seed,
                       int64_t spare = 0) {
  at::manual_seed(seed);
  const int64_t q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
  const int64_t capacity = shape.window == 0 ? kPositions : shape.window + spare;
  // A slot has what its last sequence left, which must not matter.
  const auto cache = [&] { return at::full({capacity, kv}, NAN, type); };
  return {.q = at::randn({kPositions, q}).mul_(2.0).to(type),
          .k = at::randn({kPositions, kv}).mul_(2.0).to(type),
          .v = at::randn({kPositions, kv}).to(type),
          .keys = cache(),
          .values = cache()};
}

at::Tensor sinks_of(const Example& example, at::ScalarType type) {
  if (!example.sinks) return {};
  return at::linspace(-1.0, 2.0, example.shape.heads).to(type);
}

// Continues each sequence by its number of positions, in one call, and returns the results.
std::vector<at::Tensor> go_on(const Example& example, std::vector<Sequence*> sequences,
                              const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> q, k, v, results;
  std::vector<ContinuedRows> rows;
  int64_t begin = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& one = *sequences[i];
    q.push_back(one.q.narrow(0, one.done, counts[i]));
    k.push_back(one.k.narrow(0, one.done, counts[i]));
    v.push_back(one.v.narrow(0, one.done, counts[i]));
    rows.push_back({begin, counts[i], one.done, one.keys, one.values});
    begin += counts[i];
    one.done += counts[i];
  }
  // Rows of one tensor, as a product of q, k and v together gives them.
  const at::Tensor all = at::cat({at::cat(q), at::cat(k), at::cat(v)}, 1);
  const int64_t wide = q[0].size(1), narrow = k[0].size(1);
  const at::Tensor out = attend_continued(all.narrow(1, 0, wide), all.narrow(1, wide, narrow),
                                          all.narrow(1, wide + narrow, narrow), example.shape, rows,
                                          sinks_of(example, all.scalar_type()));
  for (const ContinuedRows& one : rows) results.push_back(out.narrow(0, one.begin, one.count));
  return results;
}

at::Tensor in_steps(const Example& example, Sequence& sequence, const std::vector<int64_t>& steps) {
  std::vector<at::Tensor> out;
  for (size_t i = 0; sequence.done < kPositions; ++i) {
    const int64_t count = std::min(steps[i % steps.size()], kPositions - sequence.done);
    out.push_back(go_on(example, {&sequence}, {count})[0]);
  }
  return at::cat(out);
}

double error(const at::Tensor& got, const at::Tensor& expected) {
  return (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
}

// Goal: a sequence that is continued row by row gets the attention of the whole document: within
// 1e-5 in fp32, and within rounding in bf16.
TEST(ContinuedAttention, IsThatOfTheWholeDocument) {
  for (const Example& example : kExamples) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Sequence sequence = make_sequence(example.shape, type, 3);
      const at::Tensor whole =
          attend_forward(sequence.q.to(at::kFloat), sequence.k.to(at::kFloat),
                         sequence.v.to(at::kFloat), example.shape, {0, kPositions},
                         example.sinks ? sinks_of(example, type).to(at::kFloat) : at::Tensor())
              .out;
      EXPECT_LE(error(in_steps(example, sequence, {1}), whole), type == at::kFloat ? 1e-5 : 2e-2)
          << example.name << " " << type;
    }
  }
}

// Goal: the bits of a row do not depend on how the rows are divided among calls, also where a
// window's cache is a ring that a call overwrites several times, or a ring with spare rows.
TEST(ContinuedAttention, DoesNotDependOnTheDivisionIntoCalls) {
  const fakes::CpuBranches cpu;
  for (const Example& example : kExamples) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Sequence first = make_sequence(example.shape, type, 4);
      const at::Tensor expected = in_steps(example, first, {1});
      int64_t spare = 0;
      for (const std::vector<int64_t>& steps : std::vector<std::vector<int64_t>>{
               {kPositions}, {100, 1}, {3}, {17, 1, 64, 2}, {65, 63, 1, 1}}) {
        Sequence again = make_sequence(example.shape, type, 4, spare);
        spare += 7;
        EXPECT_TRUE(at::equal(in_steps(example, again, steps), expected))
            << example.name << " " << type << ", steps of " << steps[0];
      }
    }
  }
}

// Goal: the bits of a sequence depend neither on the sequences beside it, which come and go, nor on
// its place among them, nor on the number of threads.
TEST(ContinuedAttention, DoesNotDependOnOtherSequences) {
  const fakes::CpuBranches cpu;
  for (const Example& example : kExamples) {
    Sequence alone = make_sequence(example.shape, at::kBFloat16, 5);
    const at::Tensor expected = in_steps(example, alone, {1});
    for (const int threads : {1, 2}) {
      const Threads own(threads);
      Sequence one = make_sequence(example.shape, at::kBFloat16, 5);
      Sequence second = make_sequence(example.shape, at::kBFloat16, 6);
      Sequence third = make_sequence(example.shape, at::kBFloat16, 7);
      const std::vector<at::Tensor> parts = {
          go_on(example, {&second, &one}, {40, 3})[1],
          go_on(example, {&one, &third, &second}, {100, 1, 1})[0],
          go_on(example, {&third, &one}, {1, 50})[1],
          go_on(example, {&second, &third, &one}, {1, 90, 1})[2],
      };
      const at::Tensor got = at::cat(parts);
      EXPECT_TRUE(at::equal(got, expected.narrow(0, 0, got.size(0))))
          << example.name << ", " << threads << " threads";
    }
  }
}

// Goal: a layer that reads the keys and values of another one, which the cache has already, gets
// what it would get with its own copy, and changes nothing.
TEST(ContinuedAttention, ReadsKeysThatAreInTheCacheAlready) {
  const fakes::CpuBranches cpu;
  for (const Example& example : kExamples) {
    Sequence owner = make_sequence(example.shape, at::kFloat, 8, /*spare=*/kPositions);
    Sequence other = make_sequence(example.shape, at::kFloat, 8, /*spare=*/kPositions);
    for (const int64_t count : {60, 1, 1, 90}) {
      const at::Tensor expected = go_on(example, {&owner}, {count})[0];
      const ContinuedRows rows{0, count, other.done, owner.keys, owner.values};
      const at::Tensor q = other.q.narrow(0, other.done, count), before = owner.keys.clone();
      const at::Tensor got =
          attend_continued(q, {}, {}, example.shape, {&rows, 1}, sinks_of(example, at::kFloat));
      other.done += count;
      EXPECT_TRUE(at::equal(got, expected)) << example.name;
      EXPECT_TRUE(at::allclose(owner.keys, before, 0.0, 0.0, /*equal_nan=*/true)) << example.name;
    }
  }
}

// Goal: the branch for GPUs, which uses LibTorch's operations, computes and keeps the same.
// Binaries without the stand-in for GPUs have the CPU's branch alone.
TEST(ContinuedAttention, OnAGpuIsTheSameWithinRounding) {
  for (const Example& example : kExamples) {
    Sequence one = make_sequence(example.shape, at::kFloat, 9);
    Sequence same = make_sequence(example.shape, at::kFloat, 9);
    for (const int64_t count : {70, 1, 5, 120}) {
      at::Tensor expected;
      {
        const fakes::CpuBranches cpu;
        expected = go_on(example, {&one}, {count})[0];
      }
      const at::Tensor got = go_on(example, {&same}, {count})[0];
      EXPECT_LE(error(got, expected), 1e-5) << example.name;
      EXPECT_TRUE(at::allclose(same.keys, one.keys, 0.0, 0.0, /*equal_nan=*/true)) << example.name;
    }
  }
}

}  // namespace
}  // namespace longshore
