// Dropout of adapters: which elements a mask drops, and the products and gradients with it.
#include "model/units/input_dropout.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "model/units/differentiable_ops.h"

namespace longshore {
namespace {

// Returns keys as the data makes them: 64 random bits each.
at::Tensor keys_of(int64_t rows, uint32_t seed = 1) {
  at::Tensor keys = at::empty({rows}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const auto words = philox4x32({static_cast<uint32_t>(row), 0, 0, 0}, {seed, 2});
    keys.mutable_data_ptr<int64_t>()[row] =
        static_cast<int64_t>(uint64_t{words[1]} << 32 | words[0]);
  }
  return keys;
}

InputDropout dropout_of(const at::Tensor& keys, double share, const char* name = "q_proj") {
  return {.keys = keys, .share = share, .stream = InputDropout::stream_of(name)};
}

// Returns 1 for each element that is kept, else 0, in fp32.
at::Tensor kept_of(const InputDropout& dropout, int64_t columns) {
  return dropout.applied(at::ones({dropout.keys.size(0), columns})).gt(0).to(at::kFloat);
}

uint64_t split_mix(uint64_t state) {
  state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
  state = (state ^ state >> 27) * 0x94D049BB133111EBu;
  return state ^ state >> 31;
}

// Every element is what a plain loop over SplitMix64 says: with columns that fill no whole word,
// and with rows over several pieces.
TEST(InputDropout, DropsWhatAPlainLoopDrops) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{5, 10}, {1200, 1030}}) {
    const InputDropout dropout = dropout_of(keys_of(rows), 0.25);
    const at::Tensor x = at::rand({rows, columns}).add_(1.0);
    const at::Tensor found = dropout.applied(x);
    const auto values = x.accessor<float, 2>(), results = found.accessor<float, 2>();
    for (int64_t row = 0; row < rows; ++row) {
      const auto key = static_cast<uint64_t>(dropout.keys.const_data_ptr<int64_t>()[row]);
      const uint64_t start = split_mix(key ^ static_cast<uint64_t>(dropout.stream));
      for (int64_t column = 0; column < columns; ++column) {
        const auto word = static_cast<uint64_t>(column / 4);
        const uint64_t bits = split_mix(start + (word + 1) * 0x9E3779B97F4A7C15u);
        const auto number = static_cast<int16_t>(bits >> 16 * (column % 4));
        const bool dropped = number < 0x4000 - 0x8000;
        const float expected = dropped ? 0.0F : values[row][column] * (1.0F / 0.75F);
        ASSERT_FLOAT_EQ(results[row][column], expected) << row << " " << column;
      }
    }
  }
}

// The number of dropped elements is binomial: in all, in each column, in each row, and in pairs of
// neighbours.
TEST(InputDropout, DropsTheShareEverywhere) {
  constexpr int64_t kMany = 512;
  for (const double share : {0.05, 0.5, 0.9}) {
    const at::Tensor dropped = 1.0 - kept_of(dropout_of(keys_of(kMany), share), kMany);
    const auto sigmas = [](double mean, double probability, int64_t draws) {
      return std::abs(mean - probability) /
             std::sqrt(probability * (1.0 - probability) / static_cast<double>(draws));
    };
    EXPECT_LE(sigmas(dropped.mean().item<double>(), share, kMany * kMany), 4.0) << share;
    for (const int64_t along : {0, 1}) {
      const at::Tensor means = dropped.mean(along);
      for (int64_t i = 0; i < kMany; ++i) {
        EXPECT_LE(sigmas(means[i].item<double>(), share, kMany), 6.0) << along << " " << i;
      }
      const at::Tensor pairs =
          dropped.narrow(along, 0, kMany - 1) * dropped.narrow(along, 1, kMany - 1);
      EXPECT_LE(sigmas(pairs.mean().item<double>(), share * share, pairs.numel()), 6.0) << along;
    }
  }
}

// Other adapters and other positions have independent masks.
TEST(InputDropout, DiffersByAdapterAndByKey) {
  constexpr int64_t kMany = 256;
  constexpr double kShare = 0.25, kDiffer = 2.0 * kShare * (1.0 - kShare);
  const at::Tensor keys = keys_of(kMany);
  const at::Tensor first = kept_of(dropout_of(keys, kShare), kMany);
  for (const at::Tensor& other : {kept_of(dropout_of(keys, kShare, "k_proj"), kMany),
                                  kept_of(dropout_of(keys_of(kMany, 7), kShare), kMany),
                                  kept_of(dropout_of(keys.roll(1), kShare), kMany)}) {
    const double differ = first.ne(other).to(at::kFloat).mean().item<double>();
    EXPECT_LE(std::abs(differ - kDiffer),
              4.0 * std::sqrt(kDiffer * (1.0 - kDiffer)) / static_cast<double>(kMany));
  }
}

// A row's mask does not depend on the rows beside it, as micro-batches of any size need it.
TEST(InputDropout, OfARowDependsOnItsKeyAlone) {
  const at::Tensor keys = keys_of(40), x = at::randn({40, 24});
  const at::Tensor all = dropout_of(keys, 0.5).applied(x);
  const at::Tensor part = dropout_of(keys.narrow(0, 13, 9), 0.5).applied(x.narrow(0, 13, 9));
  EXPECT_TRUE(at::equal(part, all.narrow(0, 13, 9)));
  const at::Tensor narrow = dropout_of(keys, 0.5).applied(x.to(at::kBFloat16));
  EXPECT_TRUE(at::equal(narrow.eq(0), all.eq(0)));
}

// Without keys, as in evaluation, and without a share nothing is dropped.
TEST(InputDropout, NeedsKeysAndAShare) {
  const at::Tensor x = at::randn({4, 8});
  EXPECT_TRUE(at::equal(dropout_of({}, 0.5).applied(x), x));
  EXPECT_TRUE(at::equal(dropout_of(keys_of(4), 0.0).applied(x), x));
  EXPECT_FALSE(at::equal(dropout_of(keys_of(4), 0.5).applied(x), x));
}

constexpr int64_t kRows = 9, kIn = 14, kOut = 20, kRank = 3;
constexpr double kScaling = 1.5, kShare = 0.25;

at::Tensor leaf(at::IntArrayRef shape) {
  return at::randn(shape).requires_grad_();
}

// Returns an adapted matrix of which everything is trained.
Linear adapted(int64_t out, bool transposed, bool dora, const InputDropout& dropout) {
  return {.weight = leaf(transposed ? at::IntArrayRef{kIn, out} : at::IntArrayRef{out, kIn}),
          .bias = leaf({out}),
          .lora = {.a = leaf({kRank, kIn}),
                   .b = leaf({out, kRank}),
                   .magnitude = dora ? leaf({out}) : at::Tensor(),
                   .scaling = kScaling,
                   .dropout = dropout},
          .transposed = transposed};
}

void append_tensors(std::vector<at::Tensor>& list, const Linear& one) {
  for (const at::Tensor& tensor :
       {one.weight.stored, one.bias, one.lora.a, one.lora.b, one.lora.magnitude}) {
    if (tensor.defined()) list.push_back(tensor);
  }
}

// The formula of PEFT with dropout in operations of LibTorch, in double. It reads the same leaves.
at::Tensor plain(const at::Tensor& x, const Linear& one, bool transposed) {
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  const at::Tensor weight = transposed ? wide(one.weight.stored).t() : wide(one.weight.stored);
  const at::Tensor base = at::matmul(x, weight.t()) + wide(one.bias);
  if (!one.lora.a.defined()) return base;
  const at::Tensor mask = kept_of(one.lora.dropout, x.size(1)).to(at::kDouble);
  const at::Tensor kept = x * mask / (1.0 - kShare);
  const at::Tensor product =
      kScaling * at::matmul(at::matmul(kept, wide(one.lora.a).t()), wide(one.lora.b).t());
  if (!one.lora.magnitude.defined()) return base + product;
  const at::Tensor sum = weight + kScaling * at::matmul(wide(one.lora.b), wide(one.lora.a));
  const at::Tensor factor = wide(one.lora.magnitude) / sum.square().sum(1).sqrt().detach();
  return base + (factor - 1.0) * at::matmul(kept, weight.t()) + factor * product;
}

// Compares in the norm of each tensor.
void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                  double tolerance = 1e-5) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const at::Tensor wanted = expected[i].to(at::kDouble);
    EXPECT_LE((found[i].to(at::kDouble) - wanted).norm().item<double>(),
              tolerance * wanted.norm().item<double>())
        << i;
  }
}

void expect_group_follows_the_formula(bool transposed, bool normed, bool dora) {
  at::manual_seed(3);
  const at::Tensor keys = keys_of(kRows), x = leaf({kRows, kIn});
  std::array weights{adapted(kOut, transposed, dora, dropout_of(keys, kShare, "q")),
                     adapted(8, transposed, dora, {}),
                     adapted(4, transposed, dora, dropout_of(keys, kShare, "v"))};
  weights[1].lora.a = weights[1].lora.b = weights[1].lora.magnitude = at::Tensor();
  NormWeights norm;
  std::vector<at::Tensor> inputs{x};
  if (normed) {
    norm = {leaf({kIn}), {}, NormKind::kRms, 1e-5};
    inputs.push_back(norm.weight);
  }
  at::Tensor in = x.to(at::kDouble);
  if (normed) {
    in = in / at::sqrt((in * in).mean(-1, true) + 1e-5) * norm.weight.to(at::kDouble);
  }
  std::vector<at::Tensor> expected, grads, wide_grads;
  for (const Linear& weight : weights) {
    append_tensors(inputs, weight);
    expected.push_back(plain(in, weight, transposed));
    grads.push_back(at::randn(expected.back().sizes()));
    wide_grads.push_back(grads.back().to(at::kDouble));
  }
  const std::vector<at::Tensor> out = linear_group(x, norm, weights);
  expect_close(out, expected);
  expect_close(torch::autograd::grad(out, inputs, grads),
               torch::autograd::grad(expected, inputs, wide_grads));
}

// A group in which each adapter has a mask of its own gives the values and the gradients of x, the
// norm, the matrix, its bias, A, B and the magnitude of the formula.
TEST(ProductsWithDropout, OfAGroupFollowTheFormula) {
  for (const bool transposed : {false, true}) {
    for (const bool normed : {false, true}) {
      for (const bool dora : {false, true}) {
        expect_group_follows_the_formula(transposed, normed, dora);
      }
    }
  }
}

// The product behind an activation follows the formula too, with a gate and without.
TEST(ProductsWithDropout, BehindAnActivationFollowTheFormula) {
  for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const bool transposed = (variant & 1) != 0, gated = (variant & 2) != 0, dora = variant > 3;
    at::manual_seed(5);
    const at::Tensor gate = gated ? leaf({kRows, kIn}) : at::Tensor(), up = leaf({kRows, kIn});
    const Linear down = adapted(kOut, transposed, dora, dropout_of(keys_of(kRows), kShare, "down"));
    std::vector<at::Tensor> inputs{up};
    if (gated) inputs.push_back(gate);
    append_tensors(inputs, down);
    const at::Tensor wide_up = up.to(at::kDouble);
    const at::Tensor value = gated ? at::silu(gate.to(at::kDouble)) * wide_up : at::silu(wide_up);
    const at::Tensor grad = at::randn({kRows, kOut});
    const at::Tensor expected = plain(value, down, transposed);
    const auto wanted = torch::autograd::grad({expected}, inputs, {grad.to(at::kDouble)});
    const at::Tensor out = activate_and_project(gate, up, down, Activation::kSilu);
    expect_close({out}, {expected});
    expect_close(torch::autograd::grad({out}, inputs, {grad}), wanted);
  }
}

// In bf16 values and gradients are within the rounding of bf16.
TEST(ProductsWithDropout, InBf16AreCloseToTheFormula) {
  for (const bool dora : {false, true}) {
    at::manual_seed(8);
    const auto narrow = [](at::Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.detach().to(at::kBFloat16).requires_grad_();
    };
    at::Tensor x = leaf({kRows, kIn});
    Linear one = adapted(kOut, false, dora, dropout_of(keys_of(kRows), kShare));
    for (at::Tensor* tensor :
         {&x, &one.weight.stored, &one.bias, &one.lora.a, &one.lora.b, &one.lora.magnitude}) {
      narrow(*tensor);
    }
    std::vector<at::Tensor> inputs{x};
    append_tensors(inputs, one);
    const at::Tensor grad = at::randn({kRows, kOut}).to(at::kBFloat16);
    const at::Tensor expected = plain(x.to(at::kDouble), one, false);
    const auto wanted = torch::autograd::grad({expected}, inputs, {grad.to(at::kDouble)});
    const at::Tensor found = linear_group(x, {}, std::array{one})[0];
    expect_close({found}, {expected}, 0.02);
    expect_close(torch::autograd::grad({found}, inputs, {grad}), wanted, 0.03);
  }
}

// Returns the values and the gradients of a product.
std::vector<at::Tensor> outcome_of(const at::Tensor& x, const Linear& one, Values values) {
  std::vector<at::Tensor> inputs{x};
  append_tensors(inputs, one);
  const at::Tensor out = linear_group(x, {}, std::array{one}, values)[0];
  std::vector<at::Tensor> list = torch::autograd::grad({out}, inputs, {at::ones({kRows, kOut})});
  if (values == Values::kComputed) list.push_back(out);
  return list;
}

// A graph whose values are not read gives gradients with the same bits. With a share of zero, and
// without keys, all bits are those of a product without dropout.
TEST(ProductsWithDropout, HaveTheSameBits) {
  for (const bool dora : {false, true}) {
    at::manual_seed(6);
    const at::Tensor x = leaf({kRows, kIn}), keys = keys_of(kRows);
    Linear one = adapted(kOut, false, dora, dropout_of(keys, kShare));
    const std::vector<at::Tensor> computed = outcome_of(x, one, Values::kComputed);
    const std::vector<at::Tensor> unread = outcome_of(x, one, Values::kUnread);
    for (size_t i = 0; i < unread.size(); ++i) EXPECT_TRUE(at::equal(computed[i], unread[i])) << i;
    one.lora.dropout = {};
    const std::vector<at::Tensor> without = outcome_of(x, one, Values::kComputed);
    EXPECT_FALSE(at::equal(without.back(), computed.back()));
    for (const InputDropout& off : {dropout_of(keys, 0.0), dropout_of({}, kShare)}) {
      one.lora.dropout = off;
      const std::vector<at::Tensor> found = outcome_of(x, one, Values::kComputed);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], without[i])) << i;
    }
  }
}

}  // namespace
}  // namespace longshore
