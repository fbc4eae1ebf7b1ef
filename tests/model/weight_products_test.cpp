// Weight gradients that backward adds in place equal autograd's and are never held in memory.
#include "model/units/weight_products.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "model/units/differentiable_ops.h"
#include "model/units/unit.h"
#include "tests/model/allocation_meter.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 5, kHidden = 384, kInner = 512;

// Sums: a sink with earlier sums; it records products by parameter.
class Sums : public GradientSink {
 public:
  explicit Sums(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      sums.push_back(at::zeros(parameter.sizes(), at::kFloat));
    }
  }
  bool wants(int32_t) const override { return true; }
  void add(int32_t parameter, const at::Tensor& grad) override {
    dense += 1;
    sums.at(static_cast<size_t>(parameter)).add_(grad);
  }
  void add_rows(int32_t, const at::Tensor&, const at::Tensor&) override { FAIL(); }
  void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) override {
    products += 1;
    sums.at(static_cast<size_t>(parameter)).addmm_(left.t(), right);
  }
  void add_product_at(int32_t, int64_t, const at::Tensor&, const at::Tensor&) override { FAIL(); }
  std::vector<at::Tensor> sums;
  int dense = 0, products = 0;
};

// Layers: two matrices with biases and a third behind an activation, like an MLP.
struct Layers {
  explicit Layers(bool transposed) : transposed(transposed) {
    at::manual_seed(4);
    const auto matrix = [&](int64_t out, int64_t in) {
      return at::randn(transposed ? std::vector<int64_t>{in, out} : std::vector<int64_t>{out, in});
    };
    parameters = {matrix(kInner, kHidden), at::randn({kInner}), matrix(kInner, kHidden),
                  at::randn({kInner}), matrix(kHidden, kInner)};
    for (at::Tensor& parameter : parameters) parameter.requires_grad_(true);
  }
  at::Tensor forward(const at::Tensor& x, Values values = Values::kComputed) const {
    const auto linear = [&](size_t weight, const at::Tensor& bias) {
      return Linear{
          .weight = {.stored = parameters[weight]}, .bias = bias, .transposed = transposed};
    };
    const std::array weights{linear(0, parameters[1]), linear(2, parameters[3])};
    const std::vector<at::Tensor> inner = linear_group(x, {}, weights);
    return activate_and_project(inner[0], inner[1], linear(4, {}), Activation::kSilu, values);
  }
  bool transposed;
  std::vector<at::Tensor> parameters;
};

// ProductCount: counts LibTorch's matrix products while it lives.
class ProductCount {
 public:
  ProductCount() {
    count() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function)
                                       -> std::unique_ptr<at::ObserverContext> {
          const std::string name = function.name();
          count() += name == "aten::mm" || name == "aten::addmm";
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ProductCount(const ProductCount&) = delete;
  ProductCount& operator=(const ProductCount&) = delete;
  ~ProductCount() { at::removeCallback(handle_); }
  static int& count() {
    static int count = 0;
    return count;
  }

 private:
  at::CallbackHandle handle_;
};

class Products : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, Products, testing::Bool());

// Goal: an unread result costs no product and no memory, and its gradients have the same bits.
TEST_P(Products, OfAnUnreadResultAreNotMade) {
  const Layers layers(GetParam());
  const at::Tensor x = at::randn({kRows, kHidden}).requires_grad_(true);
  const at::Tensor grad = at::randn({kRows, kHidden});
  std::vector<at::Tensor> inputs = layers.parameters;
  inputs.push_back(x);
  std::vector<std::vector<at::Tensor>> gradients;
  for (const Values values : {Values::kComputed, Values::kUnread}) {
    at::Tensor sum;
    {
      const ProductCount products;
      const at::Tensor branch = layers.forward(x, values);
      EXPECT_EQ(products.count(), values == Values::kUnread ? 2 : 3);
      sum = values == Values::kUnread ? residual_graph(x, branch, 0.5) : x + branch * 0.5;
    }
    EXPECT_EQ(sum.storage().nbytes() == sizeof(float), values == Values::kUnread);
    gradients.push_back(torch::autograd::grad({sum}, inputs, {grad}));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
}

// Products give autograd's gradients without memory for them.
TEST_P(Products, AreAutogradsGradientsWithoutTheirMemory) {
  const Layers layers(GetParam());
  const at::Tensor x = at::randn({kRows, kHidden}).requires_grad_(true);
  const at::Tensor grad = at::randn({kRows, kHidden});
  std::vector<at::Tensor> inputs = layers.parameters;
  inputs.push_back(x);
  const auto plain = torch::autograd::grad({layers.forward(x)}, inputs, {grad});
  const at::Tensor out = layers.forward(x);
  Sums sums(layers.parameters);
  Carry grad_in;
  {
    const AllocationMeter meter;
    grad_in = autograd_backward(layers.parameters, {x}, {out}, {grad}, true, sums);
    EXPECT_LT(meter.peak(), kHidden * kInner * 4) << "less than one matrix";
  }
  EXPECT_EQ(sums.products, 3);
  EXPECT_EQ(sums.dense, 2) << "biases";
  EXPECT_TRUE(at::equal(grad_in.at(0), plain.back()));
  for (size_t i = 0; i < sums.sums.size(); ++i) {
    EXPECT_TRUE(at::allclose(sums.sums[i], plain[i], 1e-5, 1e-4)) << i;
  }
}

// A norm ahead of the products gives the bits of both apart, and keeps only the norm's input.
TEST(NormedProducts, AreThoseOfTheNormAndKeepItsInputAlone) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kRmsOffset, NormKind::kLayer}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(5);
      const at::TensorOptions options = at::TensorOptions(type);
      const auto leaf = [&options](at::IntArrayRef shape) {
        return at::randn(shape, options).requires_grad_(true);
      };
      const at::Tensor x = leaf({kRows, kHidden});
      NormWeights norm{leaf({kHidden}), {}, kind, 1e-5};
      if (kind == NormKind::kLayer) norm.bias = leaf({kHidden});
      const std::array weights{
          Linear{.weight = {.stored = leaf({8, kHidden})}, .bias = leaf({8})},
          Linear{.weight = {.stored = leaf({16, kHidden})}, .bias = leaf({16})}};
      std::vector<at::Tensor> inputs{x, norm.weight};
      if (norm.bias.defined()) inputs.push_back(norm.bias);
      for (const Linear& one : weights) inputs.insert(inputs.end(), {one.weight.stored, one.bias});
      const std::vector<at::Tensor> grads{at::randn({kRows, 8}, options),
                                          at::randn({kRows, 16}, options)};
      const auto apart =
          linear_group(normalise(x, norm.weight, norm.bias, kind, norm.eps), {}, weights);
      const auto expected = torch::autograd::grad(apart, inputs, grads);
      const AllocationMeter meter;
      const auto together = linear_group(x, norm, weights);
      EXPECT_LT(meter.live(), kRows * kHidden * x.element_size()) << "no normed input is kept";
      const auto found = torch::autograd::grad(together, inputs, grads);
      EXPECT_TRUE(at::equal(together[0], apart[0]) && at::equal(together[1], apart[1]));
      for (size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << i << " of kind " << static_cast<int>(kind);
      }
    }
  }
}

// Products go to the bound parameters; frozen and unbound weights get none.
TEST_P(Products, GoWhereTheyAreBound) {
  Layers layers(GetParam());
  layers.parameters[2].requires_grad_(false);
  const at::Tensor x = at::randn({kRows, kHidden});
  Sums sums(layers.parameters);
  autograd_backward(layers.parameters, {x}, {layers.forward(x)}, {at::ones({kRows, kHidden})},
                    false, sums);
  EXPECT_EQ(sums.products, 2);
  EXPECT_FALSE(sums.sums[2].any().item<bool>());
  const at::Tensor out = layers.forward(x);
  torch::autograd::grad({out}, {layers.parameters[0]}, {at::ones({kRows, kHidden})});
  EXPECT_EQ(sums.products, 2) << "no pass is bound any more";
  const std::array roots{layers.forward(x)};
  const WeightProducts bound(layers.parameters, roots, &sums);
  EXPECT_THROW(WeightProducts(layers.parameters, roots, &sums), CheckFailure);
  const torch::autograd::Edge unbound =
      torch::autograd::impl::gradient_edge(at::ones({2, 2}).requires_grad_(true));
  EXPECT_FALSE(bound.add(unbound, x, x));
}

// Goal: a graph that one pass has been bound to can be bound to another one afterwards.
TEST_P(Products, AreBoundForOnePassAlone) {
  const Layers layers(GetParam());
  const std::array roots{layers.forward(at::randn({kRows, kHidden}))};
  Sums first(layers.parameters), second(layers.parameters);
  {
    const WeightProducts bound(layers.parameters, roots, &first);
  }
  autograd_backward(layers.parameters, {}, {roots[0]}, {at::ones({kRows, kHidden})}, false, second);
  EXPECT_EQ(first.products, 0);
  EXPECT_EQ(second.products, 3);
}

}  // namespace
}  // namespace longshore
