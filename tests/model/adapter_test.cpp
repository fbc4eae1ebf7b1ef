// Products and values of low-rank adapters follow their formulas.
#include "model/parameters/adapter.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "model/parameters/adapter_values.h"
#include "model/units/differentiable_ops.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 9, kIn = 12, kOut = 20, kRank = 3;
constexpr double kScaling = 1.5;

at::Tensor leaf(at::IntArrayRef shape, bool trained = true) {
  return at::randn(shape).requires_grad_(trained);
}

// Returns an adapted matrix whose base is frozen; with a magnitude it is DoRA's.
Linear adapted(int64_t in, int64_t out, bool transposed, bool dora = false) {
  return {.weight = leaf(transposed ? at::IntArrayRef{in, out} : at::IntArrayRef{out, in}, false),
          .bias = leaf({out}, false),
          .lora = {.a = leaf({kRank, in}),
                   .b = leaf({out, kRank}),
                   .magnitude = dora ? leaf({out}) : at::Tensor(),
                   .scaling = kScaling},
          .transposed = transposed};
}

// The formulas of LoRA and DoRA in operations of LibTorch alone. The norms have no gradient.
at::Tensor plain(const at::Tensor& x, const Linear& one, bool transposed) {
  const at::Tensor weight = transposed ? one.weight.stored.t() : one.weight.stored;
  at::Tensor y = at::matmul(x, weight.t());
  if (!one.lora.a.defined()) return y + one.bias;
  y = y + kScaling * at::matmul(at::matmul(x, one.lora.a.t()), one.lora.b.t());
  if (!one.lora.magnitude.defined()) return y + one.bias;
  const at::Tensor sum = weight + kScaling * at::matmul(one.lora.b, one.lora.a);
  return one.lora.magnitude / sum.square().sum(1).sqrt().detach() * y + one.bias;
}

// Returns what is trained of a matrix's adapter.
std::vector<at::Tensor> trained(const Linear& one) {
  if (!one.lora.magnitude.defined()) return {one.lora.a, one.lora.b};
  return {one.lora.a, one.lora.b, one.lora.magnitude};
}

void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-4)) << i;
  }
}

struct GroupCase {
  bool transposed, normed, x_trained, dora;
};

void expect_group_follows_the_formula(const GroupCase& one) {
  at::manual_seed(3);
  const at::Tensor x = leaf({kRows, kIn}, one.x_trained);
  std::array weights{adapted(kIn, kOut, one.transposed, one.dora),
                     adapted(kIn, 8, one.transposed, one.dora),
                     adapted(kIn, 4, one.transposed, one.dora)};
  weights[1].lora.a = weights[1].lora.b = weights[1].lora.magnitude = at::Tensor();
  NormWeights norm;
  if (one.normed) norm = {leaf({kIn}, one.x_trained), {}, NormKind::kRms, 1e-5};
  std::vector<at::Tensor> inputs = trained(weights[0]);
  for (const at::Tensor& tensor : trained(weights[2])) inputs.push_back(tensor);
  if (one.x_trained) inputs.push_back(x);
  if (one.x_trained && one.normed) inputs.push_back(norm.weight);
  std::vector<at::Tensor> expected, grads;
  const at::Tensor in = one.normed ? x / at::sqrt((x * x).mean(-1, true) + 1e-5) * norm.weight : x;
  for (const Linear& weight : weights) {
    expected.push_back(plain(in, weight, one.transposed));
    grads.push_back(at::randn(expected.back().sizes()));
  }
  // The matrix without an adapter takes part only where x has a gradient.
  const std::vector<size_t> roots =
      one.x_trained ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{0, 2};
  const auto gradients = [&](const std::vector<at::Tensor>& out) {
    std::vector<at::Tensor> chosen, given;
    for (const size_t i : roots) chosen.push_back(out[i]), given.push_back(grads[i]);
    return torch::autograd::grad(chosen, inputs, given);
  };
  const std::vector<at::Tensor> out = linear_group(x, norm, weights);
  expect_close(out, expected);
  if (!one.x_trained && one.normed) return;  // autograd would leave out the frozen norm itself
  expect_close(gradients(out), gradients(expected));
}

// A group of matrices of which some have adapters gives the values and gradients of the formula,
// with and without a norm, a trained norm, a gradient of x, and magnitudes.
TEST(AdaptedProducts, OfAGroupFollowTheFormula) {
  for (const bool transposed : {false, true}) {
    for (const bool normed : {false, true}) {
      for (const bool x_trained : {false, true}) {
        for (const bool dora : {false, true}) {
          expect_group_follows_the_formula({transposed, normed, x_trained, dora});
        }
      }
    }
  }
}

// Counts the products of which a factor is in the memory of a tensor, while it exists.
class ProductsOf {
 public:
  explicit ProductsOf(const at::Tensor& tensor) {
    data() = tensor.const_data_ptr();
    count() = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&ProductsOf::note)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ProductsOf(const ProductsOf&) = delete;
  ProductsOf& operator=(const ProductsOf&) = delete;
  ~ProductsOf() { at::removeCallback(handle_); }
  static int& count() {
    static int count = 0;
    return count;
  }

 private:
  static const void*& data() {
    static const void* data = nullptr;
    return data;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const std::set<std::string> products = {"aten::mm", "aten::addmm", "aten::addmm_"};
    if (!products.contains(function.name())) return nullptr;
    for (const c10::IValue& input : function.inputs()) {
      if (input.isTensor() && input.toTensor().const_data_ptr() == data()) ++count();
    }
    return nullptr;
  }

  at::CallbackHandle handle_;
};

// Goal: adapters that read the same x multiply it by their matrices A once and not one by one. In
// forward it is a factor of three products with W and one with A, in backward of one with A and of
// the three gradients of A.
TEST(AdaptedProducts, OfAGroupReadTheInputOnce) {
  at::manual_seed(7);
  const at::Tensor x = leaf({kRows, kIn});
  const std::array weights{adapted(kIn, kOut, false), adapted(kIn, 8, false),
                           adapted(kIn, 4, false)};
  std::vector<at::Tensor> inputs = {x}, out, grads;
  for (const Linear& weight : weights) {
    for (const at::Tensor& tensor : trained(weight)) inputs.push_back(tensor);
  }
  {
    const ProductsOf products(x);
    out = linear_group(x, {}, weights);
    EXPECT_EQ(products.count(), 4);
  }
  for (const at::Tensor& one : out) grads.push_back(at::randn(one.sizes()));
  const ProductsOf products(x);
  torch::autograd::grad(out, inputs, grads);
  EXPECT_EQ(products.count(), 4);
}

// Adapters in the first unit, below which nothing is trained: the frozen norm gets no gradient.
TEST(AdaptedProducts, BelowAFrozenNormAreTrained) {
  for (const bool dora : {false, true}) {
    at::manual_seed(4);
    const at::Tensor x = leaf({kRows, kIn}, false);
    const NormWeights norm{leaf({kIn}, false), {}, NormKind::kRms, 1e-5};
    const std::array weights{adapted(kIn, kOut, false, dora)};
    const at::Tensor in = normalise(x, norm.weight, {}, norm.kind, norm.eps);
    const std::vector<at::Tensor> inputs = trained(weights[0]);
    const at::Tensor grad = at::randn({kRows, kOut});
    expect_close(torch::autograd::grad({linear_group(x, norm, weights)[0]}, inputs, {grad}),
                 torch::autograd::grad({plain(in, weights[0], false)}, inputs, {grad}));
  }
}

void expect_projection_follows_the_formula(bool transposed, bool gated, bool dora) {
  at::manual_seed(5);
  const at::Tensor gate = gated ? leaf({kRows, kIn}) : at::Tensor();
  const at::Tensor up = leaf({kRows, kIn});
  const Linear down = adapted(kIn, kOut, transposed, dora);
  std::vector<at::Tensor> inputs = trained(down);
  inputs.push_back(up);
  if (gated) inputs.push_back(gate);
  const at::Tensor value = gated ? at::silu(gate) * up : at::silu(up);
  const at::Tensor grad = at::randn({kRows, kOut});
  const at::Tensor expected = plain(value, down, transposed);
  const auto wanted = torch::autograd::grad({expected}, inputs, {grad});
  const at::Tensor out = activate_and_project(gate, up, down, Activation::kSilu);
  expect_close({out}, {expected});
  expect_close(torch::autograd::grad({out}, inputs, {grad}), wanted);
}

// The product behind the activation follows the formula, with a gate and without.
TEST(AdaptedProducts, BehindAnActivationFollowTheFormula) {
  for (const bool transposed : {false, true}) {
    for (const bool gated : {false, true}) {
      for (const bool dora : {false, true}) {
        expect_projection_follows_the_formula(transposed, gated, dora);
      }
    }
  }
}

// A graph whose values are not read gives gradients with the same bits.
TEST(AdaptedProducts, WithoutValuesHaveTheSameGradients) {
  for (const bool dora : {false, true}) {
    at::manual_seed(6);
    const at::Tensor x = leaf({kRows, kIn});
    const std::array weights{adapted(kIn, kOut, false, dora)};
    std::vector<at::Tensor> inputs = trained(weights[0]);
    inputs.push_back(x);
    const at::Tensor grad = at::randn({kRows, kOut});
    const auto computed = torch::autograd::grad({linear_group(x, {}, weights)[0]}, inputs, {grad});
    const auto unread =
        torch::autograd::grad({linear_group(x, {}, weights, Values::kUnread)[0]}, inputs, {grad});
    for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::equal(computed[i], unread[i])) << i;
  }
}

// Norms over several pieces of a matrix, in both layouts, and rows over several pieces.
TEST(AdaptedProducts, OfManyPiecesFollowTheFormula) {
  for (const bool transposed : {false, true}) {
    at::manual_seed(7);
    const int64_t rows = 1100, in = 1100, out = 4200;  // a piece has 2^22 values
    const at::Tensor x = leaf({rows, in}, false);
    const Linear one = adapted(in, out, transposed, true);
    const at::Tensor grad = at::randn({rows, out});
    const at::Tensor expected = plain(x, one, transposed);
    const at::Tensor found = linear_group(x, {}, std::array{one})[0];
    const auto wanted = torch::autograd::grad({expected}, trained(one), {grad});
    const auto gradients = torch::autograd::grad({found}, trained(one), {grad});
    EXPECT_LE((found - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE((gradients[i] - wanted[i]).norm().item<double>(),
                1e-4 * wanted[i].norm().item<double>())
          << i;
    }
  }
}

// In bf16 values and gradients are within the rounding of bf16.
TEST(AdaptedProducts, InBf16AreCloseToTheFormula) {
  at::manual_seed(8);
  const at::Tensor x = at::randn({kRows, kIn}).to(at::kBFloat16).requires_grad_();
  Linear narrow = adapted(kIn, kOut, false, true), wide = narrow;
  for (auto [own, other] : {std::pair{&narrow.weight.stored, &wide.weight.stored},
                            {&narrow.bias, &wide.bias},
                            {&narrow.lora.a, &wide.lora.a},
                            {&narrow.lora.b, &wide.lora.b},
                            {&narrow.lora.magnitude, &wide.lora.magnitude}}) {
    *own = own->detach().to(at::kBFloat16).requires_grad_(other->requires_grad());
    *other = own->detach().to(at::kFloat).requires_grad_(other->requires_grad());
  }
  const at::Tensor wide_x = x.detach().to(at::kFloat).requires_grad_();
  std::vector<at::Tensor> inputs = trained(narrow), wide_inputs = trained(wide);
  inputs.push_back(x), wide_inputs.push_back(wide_x);
  const at::Tensor grad = at::randn({kRows, kOut}).to(at::kBFloat16);
  const at::Tensor expected = plain(wide_x, wide, false);
  const at::Tensor found = linear_group(x, {}, std::array{narrow})[0];
  const auto wanted = torch::autograd::grad({expected}, wide_inputs, {grad.to(at::kFloat)});
  const auto gradients = torch::autograd::grad({found}, inputs, {grad});
  EXPECT_LE((found - expected).norm().item<double>(), 0.01 * expected.norm().item<double>());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_LE((gradients[i] - wanted[i]).norm().item<double>(),
              0.02 * wanted[i].norm().item<double>())
        << i;
  }
}

// An output whose weights are all zero begins with the magnitude 0 and stays zero.
TEST(AdaptedProducts, OfZeroWeightsAreZero) {
  Linear one = adapted(kIn, kOut, false, true);
  for (const at::Tensor& tensor : {one.weight.stored, one.lora.b, one.lora.magnitude, one.bias}) {
    tensor.detach()[3].zero_();
  }
  const at::Tensor y = linear_group(at::randn({kRows, kIn}), {}, std::array{one})[0];
  for (const at::Tensor& gradient : torch::autograd::grad({y}, trained(one), {at::ones_like(y)})) {
    EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
  }
  EXPECT_EQ(y.select(1, 3).abs().max().item<double>(), 0.0);
  EXPECT_GT(y.select(1, 4).abs().max().item<double>(), 0.0);
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().view(-1);
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

// A merged matrix and its norms are those of the formula, in any ranges, in both layouts.
TEST(AdaptedMatrixValues, FollowTheFormula) {
  for (const bool transposed : {false, true}) {
    at::manual_seed(9);
    const int64_t in = 2200, out = 700;  // norms read pieces of 2^20 values
    const Linear one = adapted(in, out, transposed, true);
    const std::vector<float> stored = values_of(one.weight.stored);
    const auto read = [&](int64_t begin, std::span<float> part) {
      std::copy_n(stored.begin() + begin, part.size(), part.begin());
    };
    AdaptedMatrix matrix(kScaling, transposed, one.weight.size(0), one.weight.size(1),
                         values_of(one.lora.a), values_of(one.lora.b));
    const at::Tensor product =
        kScaling * at::matmul(one.lora.b.to(at::kDouble), one.lora.a.to(at::kDouble));
    const at::Tensor weight =
        (transposed ? one.weight.stored.t() : one.weight.stored).to(at::kDouble);
    const at::Tensor sum = (weight + product).detach(), norms = sum.square().sum(1).sqrt();
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, out}, {13, 500}, {699, 1}}) {
      const std::vector<double> found = matrix.norms(read, begin, count);
      ASSERT_EQ(std::ssize(found), count);
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_NEAR(found[static_cast<size_t>(i)], norms[begin + i].item<double>(), 1e-9);
      }
    }
    matrix.set_magnitudes(read, values_of(one.lora.magnitude));
    const at::Tensor merged =
        sum * (one.lora.magnitude.detach().to(at::kDouble) / norms).unsqueeze(1);
    const std::vector<float> expected =
        values_of((transposed ? merged.t() : merged).to(at::kFloat));
    std::vector<float> found = stored;
    const size_t cut = 12345;
    matrix.merge(0, std::span(found).first(cut));
    matrix.merge(cut, std::span(found).subspan(cut));
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace longshore
