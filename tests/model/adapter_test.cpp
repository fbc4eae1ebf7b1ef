// Low-rank adapters: the products with them, which matrices get one, and what is trained.
#include "model/adapter.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "model/adapter_values.h"
#include "model/decoder_units.h"
#include "model/differentiable_ops.h"
#include "model/families.h"
#include "model/model_spec.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 9, kIn = 12, kOut = 20, kRank = 3;
constexpr double kScaling = 1.5;

at::Tensor leaf(at::IntArrayRef shape, bool trained = true) {
  return at::randn(shape).requires_grad_(trained);
}

// Returns an adapted matrix whose base is frozen; with a magnitude it is DoRA's.
LinearWeights adapted(int64_t in, int64_t out, bool transposed, bool dora = false) {
  return {.weight = leaf(transposed ? at::IntArrayRef{in, out} : at::IntArrayRef{out, in}, false),
          .bias = leaf({out}, false),
          .lora_a = leaf({kRank, in}),
          .lora_b = leaf({out, kRank}),
          .lora_magnitude = dora ? leaf({out}) : at::Tensor(),
          .lora_scaling = kScaling};
}

// The formulas of LoRA and DoRA in operations of LibTorch alone. The norms have no gradient.
at::Tensor plain(const at::Tensor& x, const LinearWeights& one, bool transposed) {
  const at::Tensor weight = transposed ? one.weight.t() : one.weight;
  at::Tensor y = at::matmul(x, weight.t());
  if (!one.lora_a.defined()) return y + one.bias;
  y = y + kScaling * at::matmul(at::matmul(x, one.lora_a.t()), one.lora_b.t());
  if (!one.lora_magnitude.defined()) return y + one.bias;
  const at::Tensor sum = weight + kScaling * at::matmul(one.lora_b, one.lora_a);
  return one.lora_magnitude / sum.square().sum(1).sqrt().detach() * y + one.bias;
}

// Returns what is trained of a matrix's adapter.
std::vector<at::Tensor> trained(const LinearWeights& one) {
  if (!one.lora_magnitude.defined()) return {one.lora_a, one.lora_b};
  return {one.lora_a, one.lora_b, one.lora_magnitude};
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
  weights[1].lora_a = weights[1].lora_b = weights[1].lora_magnitude = at::Tensor();
  NormWeights norm;
  if (one.normed) norm = {leaf({kIn}, one.x_trained), {}, NormKind::kRms, 1e-5};
  std::vector<at::Tensor> inputs = trained(weights[0]);
  for (const at::Tensor& tensor : trained(weights[2])) inputs.push_back(tensor);
  if (one.x_trained) inputs.push_back(x);
  if (one.x_trained && one.normed) inputs.push_back(norm.weight);
  std::vector<at::Tensor> expected, grads;
  const at::Tensor in = one.normed ? x / at::sqrt((x * x).mean(-1, true) + 1e-5) * norm.weight : x;
  for (const LinearWeights& weight : weights) {
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
  const std::vector<at::Tensor> out = linear_group(x, norm, weights, one.transposed);
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
  for (const LinearWeights& weight : weights) {
    for (const at::Tensor& tensor : trained(weight)) inputs.push_back(tensor);
  }
  {
    const ProductsOf products(x);
    out = linear_group(x, {}, weights, false);
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
    expect_close(torch::autograd::grad({linear_group(x, norm, weights, false)[0]}, inputs, {grad}),
                 torch::autograd::grad({plain(in, weights[0], false)}, inputs, {grad}));
  }
}

void expect_projection_follows_the_formula(bool transposed, bool gated, bool dora) {
  at::manual_seed(5);
  const at::Tensor gate = gated ? leaf({kRows, kIn}) : at::Tensor();
  const at::Tensor up = leaf({kRows, kIn});
  const LinearWeights down = adapted(kIn, kOut, transposed, dora);
  std::vector<at::Tensor> inputs = trained(down);
  inputs.push_back(up);
  if (gated) inputs.push_back(gate);
  const at::Tensor value = gated ? at::silu(gate) * up : at::silu(up);
  const at::Tensor grad = at::randn({kRows, kOut});
  const at::Tensor expected = plain(value, down, transposed);
  const auto wanted = torch::autograd::grad({expected}, inputs, {grad});
  const at::Tensor out = activate_and_project(gate, up, down, Activation::kSilu, transposed);
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
    const auto computed =
        torch::autograd::grad({linear_group(x, {}, weights, false)[0]}, inputs, {grad});
    const auto unread = torch::autograd::grad(
        {linear_group(x, {}, weights, false, Values::kUnread)[0]}, inputs, {grad});
    for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::equal(computed[i], unread[i])) << i;
  }
}

// Norms over several pieces of a matrix, in both layouts, and rows over several pieces.
TEST(AdaptedProducts, OfManyPiecesFollowTheFormula) {
  for (const bool transposed : {false, true}) {
    at::manual_seed(7);
    const int64_t rows = 1100, in = 1100, out = 4200;  // a piece has 2^22 values
    const at::Tensor x = leaf({rows, in}, false);
    const LinearWeights one = adapted(in, out, transposed, true);
    const at::Tensor grad = at::randn({rows, out});
    const at::Tensor expected = plain(x, one, transposed);
    const at::Tensor found = linear_group(x, {}, std::array{one}, transposed)[0];
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
  LinearWeights narrow = adapted(kIn, kOut, false, true), wide = narrow;
  for (auto [own, other] : {std::pair{&narrow.weight, &wide.weight},
                            {&narrow.bias, &wide.bias},
                            {&narrow.lora_a, &wide.lora_a},
                            {&narrow.lora_b, &wide.lora_b},
                            {&narrow.lora_magnitude, &wide.lora_magnitude}}) {
    *own = own->detach().to(at::kBFloat16).requires_grad_(other->requires_grad());
    *other = own->detach().to(at::kFloat).requires_grad_(other->requires_grad());
  }
  const at::Tensor wide_x = x.detach().to(at::kFloat).requires_grad_();
  std::vector<at::Tensor> inputs = trained(narrow), wide_inputs = trained(wide);
  inputs.push_back(x), wide_inputs.push_back(wide_x);
  const at::Tensor grad = at::randn({kRows, kOut}).to(at::kBFloat16);
  const at::Tensor expected = plain(wide_x, wide, false);
  const at::Tensor found = linear_group(x, {}, std::array{narrow}, false)[0];
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
  LinearWeights one = adapted(kIn, kOut, false, true);
  for (const at::Tensor& tensor : {one.weight, one.lora_b, one.lora_magnitude, one.bias}) {
    tensor.detach()[3].zero_();
  }
  const at::Tensor y = linear_group(at::randn({kRows, kIn}), {}, std::array{one}, false)[0];
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
    const LinearWeights one = adapted(in, out, transposed, true);
    const std::vector<float> stored = values_of(one.weight);
    const auto read = [&](int64_t begin, std::span<float> part) {
      std::copy_n(stored.begin() + begin, part.size(), part.begin());
    };
    AdaptedMatrix matrix(kScaling, transposed, one.weight.size(0), one.weight.size(1),
                         values_of(one.lora_a), values_of(one.lora_b));
    const at::Tensor product =
        kScaling * at::matmul(one.lora_b.to(at::kDouble), one.lora_a.to(at::kDouble));
    const at::Tensor weight = (transposed ? one.weight.t() : one.weight).to(at::kDouble);
    const at::Tensor sum = (weight + product).detach(), norms = sum.square().sum(1).sqrt();
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, out}, {13, 500}, {699, 1}}) {
      const std::vector<double> found = matrix.norms(read, begin, count);
      ASSERT_EQ(std::ssize(found), count);
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_NEAR(found[static_cast<size_t>(i)], norms[begin + i].item<double>(), 1e-9);
      }
    }
    matrix.set_magnitudes(read, values_of(one.lora_magnitude));
    const at::Tensor merged =
        sum * (one.lora_magnitude.detach().to(at::kDouble) / norms).unsqueeze(1);
    const std::vector<float> expected =
        values_of((transposed ? merged.t() : merged).to(at::kFloat));
    std::vector<float> found = stored;
    const size_t cut = 12345;
    matrix.merge(0, std::span(found).first(cut));
    matrix.merge(cut, std::span(found).subspan(cut));
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-6) << i;
  }
}

ArchSpec llama(bool tied = false) {
  Json config = {{"model_type", "llama"},       {"vocab_size", 32},
                 {"hidden_size", 16},           {"intermediate_size", 24},
                 {"num_hidden_layers", 12},     {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},    {"max_position_embeddings", 64},
                 {"rms_norm_eps", 1e-5},        {"hidden_act", "silu"},
                 {"tie_word_embeddings", tied}, {"eos_token_id", 1}};
  return read_arch_spec(config, "config.json");
}

ArchSpec with_targets(ArchSpec arch, std::vector<std::string> targets) {
  arch.adapter = choose_adapters(arch, {.rank = 4, .alpha = 8.0, .targets = std::move(targets)},
                                 "adapter.targets");
  return arch;
}

// Returns the adapted modules of one block of the model.
std::vector<std::string> adapted_in(const ArchSpec& arch, size_t block) {
  std::vector<std::string> names;
  const ModelSpec model = make_model_spec(arch, {});
  for (const ParamSpec& parameter : model.units.at(block + 1).parameters) {
    const std::string end = ".lora_A.weight";
    if (parameter.name.ends_with(end)) {
      names.push_back(parameter.name.substr(0, parameter.name.size() - end.size()));
    }
  }
  return names;
}

// Targets are words, ends of names, or globs of whole names; a layer's number is a whole part.
TEST(AdapterTargets, AreWordsNamesAndGlobs) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(adapted_in(with_targets(llama(), {"attention"}), 0).size(), 4u);
  EXPECT_EQ(adapted_in(with_targets(llama(), {"mlp"}), 0).size(), 3u);
  EXPECT_EQ(adapted_in(with_targets(llama(), {"all-linear"}), 0).size(), 7u);
  EXPECT_EQ(adapted_in(with_targets(llama(), {"q_proj", "self_attn.v_proj"}), 2),
            (Names{"model.layers.2.self_attn.q_proj", "model.layers.2.self_attn.v_proj"}));
  const ArchSpec one = with_targets(llama(), {"model.layers.1.mlp.*"});
  EXPECT_EQ(adapted_in(one, 1).size(), 3u);
  EXPECT_EQ(adapted_in(one, 11).size(), 0u);
}

// Goal: a layer of gated DeltaNet has the targets that PEFT takes for all linear modules: not its
// convolution.
TEST(Adapter, AllLinearIncludesTheMatricesOfGatedDeltaNet) {
  const ArchSpec arch = read_arch_spec({{"model_type", "qwen3_5_text"},
                                        {"vocab_size", 32},
                                        {"hidden_size", 16},
                                        {"intermediate_size", 24},
                                        {"num_hidden_layers", 4},
                                        {"num_attention_heads", 4},
                                        {"num_key_value_heads", 2}},
                                       "config.json");
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 0).size(), 8u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 3).size(), 7u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"attention"}), 0).size(), 5u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"in_proj_z"}), 0).size(), 1u);
  EXPECT_THROW(with_targets(arch, {"conv1d"}), ConfigError);
}

ArchSpec qwen3_moe() {
  return read_arch_spec({{"model_type", "qwen3_moe"},
                         {"vocab_size", 32},
                         {"hidden_size", 16},
                         {"intermediate_size", 24},
                         {"num_hidden_layers", 3},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"max_position_embeddings", 64},
                         {"rms_norm_eps", 1e-6},
                         {"hidden_act", "silu"},
                         {"eos_token_id", 1},
                         {"head_dim", 12},
                         {"decoder_sparse_step", 1},
                         {"mlp_only_layers", {1}},
                         {"moe_intermediate_size", 12},
                         {"num_experts", 6},
                         {"num_experts_per_tok", 2},
                         {"norm_topk_prob", true}},
                        "config.json");
}

// What PEFT 0.21 adapts for "all-linear": experts and router, and of a dense layer the attention
// alone. Gate and up of experts have twice the rank.
TEST(AdapterTargets, OfExpertsAreThoseOfPeft) {
  using Names = std::vector<std::string>;
  using Shape = std::vector<int64_t>;
  const ArchSpec arch = with_targets(qwen3_moe(), {"all-linear"});
  const std::string mlp = "model.layers.0.mlp.";
  const Names adapted = adapted_in(arch, 0);
  EXPECT_EQ(Names(adapted.begin() + 4, adapted.end()),
            (Names{mlp + "gate", mlp + "experts.base_layer", mlp + "experts"}));
  EXPECT_EQ(adapted_in(arch, 1).size(), 4u);
  EXPECT_EQ(target_names(arch), (Names{"k_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(target_parameters(arch), (Names{"down_proj", "gate.weight", "gate_up_proj"}));
  const ModelSpec model = make_model_spec(arch, {});
  const std::vector<ParamSpec>& parameters = model.units.at(1).parameters;
  const std::span<const ParamSpec> last = std::span(parameters).last(4);
  EXPECT_EQ(last[0].shape, (Shape{6, 8, 16}));
  EXPECT_EQ(last[1].shape, (Shape{6, 24, 8}));
  EXPECT_EQ(last[2].shape, (Shape{6, 4, 12}));
  EXPECT_EQ(last[3].shape, (Shape{6, 16, 4}));
  EXPECT_EQ(peft_shape(last[0]), (Shape{48, 16}));
  EXPECT_EQ(peft_shape(last[1]), (Shape{24, 48}));
  EXPECT_EQ(arch.adapter.scaling_of(Module::kExpertsGateUp), 2.0);
  const ArchSpec one = with_targets(qwen3_moe(), {"model.layers.2.mlp.experts.*"});
  EXPECT_EQ(target_parameters(one), (Names{"model.layers.2.mlp.experts.down_proj",
                                           "model.layers.2.mlp.experts.gate_up_proj"}));
}

// With rsLoRA the doubled rank of gate and up is under the root: 16 / sqrt(8) beside 8 / sqrt(4).
TEST(AdapterTargets, OfExpertsAreScaledByTheirOwnRank) {
  const AdapterSpec adapter = choose_adapters(
      qwen3_moe(), {.rank = 4, .alpha = 8.0, .rslora = true, .targets = {"mlp"}}, "");
  EXPECT_DOUBLE_EQ(adapter.scaling_of(Module::kExpertsGateUp), 16.0 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(adapter.scaling_of(Module::kExpertsDown), 4.0);
}

// PEFT has neither dropout nor DoRA for experts and routers, and nests two adapters of experts.
TEST(AdapterTargets, OfExpertsRefuseWhatPeftRefuses) {
  EXPECT_THROW(choose_adapters(qwen3_moe(), {.dora = true, .targets = {"all-linear"}}, ""),
               ConfigError);
  EXPECT_THROW(choose_adapters(qwen3_moe(), {.dropout = 0.1, .targets = {"gate"}}, ""),
               ConfigError);
  EXPECT_NO_THROW(choose_adapters(qwen3_moe(), {.dropout = 0.1, .targets = {"attention"}}, ""));
  EXPECT_THROW(with_targets(qwen3_moe(), {"gate_up_proj"}), ConfigError);
}

// Goal: B of two experts, two outputs and rank 3 by hand. PEFT's columns are by rank, then expert.
TEST(AdapterTargets, OfExpertsAreStoredInTheOrderOfPeft) {
  const ParamSpec b{.name = "experts.lora_B.weight",
                    .shape = {2, 2, 3},
                    .stacked = true,
                    .adapter = true,
                    .init = {}};
  const std::vector<float> own = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<float> peft = {1, 7, 2, 8, 3, 9, 4, 10, 5, 11, 6, 12};
  EXPECT_TRUE(peft_reorders(b));
  EXPECT_EQ(to_peft(b, own), peft);
  EXPECT_EQ(from_peft(b, peft), own);
}

// An exported adapter names its targets by their last parts, or wholly where others share these.
TEST(AdapterTargets, AreExportedAsPeftReadsThem) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(target_names(with_targets(llama(), {"attention"})),
            (Names{"k_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(target_names(with_targets(llama(), {"model.layers.1.mlp.up*"})),
            Names{"model.layers.1.mlp.up_proj"});
}

// Shapes, the scaling, and PEFT's initial values: A uniform in 1 / sqrt(in), B zero.
TEST(AdapterTargets, HaveShapesAndInitialValuesOfPeft) {
  const ArchSpec arch = with_targets(llama(), {"down_proj"});
  EXPECT_EQ(arch.adapter.scaling, 2.0);
  const ModelSpec model = make_model_spec(arch, {});
  const std::vector<ParamSpec>& parameters = model.units.at(1).parameters;
  const ParamSpec &a = parameters.at(parameters.size() - 2), &b = parameters.back();
  EXPECT_EQ(a.shape, (std::vector<int64_t>{4, 24}));
  EXPECT_EQ(b.shape, (std::vector<int64_t>{16, 4}));
  EXPECT_EQ(a.init.kind, InitSpec::Kind::kUniform);
  EXPECT_NEAR(a.init.bound, 1.0 / std::sqrt(24.0), 1e-12);
  EXPECT_EQ(b.init.kind, InitSpec::Kind::kZeros);
  EXPECT_EQ(
      choose_adapters(arch, {.rank = 16, .alpha = 8.0, .rslora = true, .targets = {"mlp"}}, "")
          .scaling,
      2.0);
}

// DoRA adds a vector behind A and B, named as PEFT's file names it. It is no matrix, so it does not
// decay.
TEST(AdapterTargets, OfDoraHaveAMagnitude) {
  ArchSpec arch = llama();
  arch.adapter = choose_adapters(
      arch, {.rank = 4, .alpha = 8.0, .dora = true, .targets = {"down_proj"}}, "adapter.targets");
  const ParamSpec magnitude = make_model_spec(arch, {}).units.at(1).parameters.back();
  EXPECT_EQ(magnitude.name, "model.layers.0.mlp.down_proj.lora_magnitude_vector");
  EXPECT_EQ(magnitude.shape, std::vector<int64_t>{16});
  EXPECT_TRUE(magnitude.adapter);
  EXPECT_FALSE(magnitude.is_matrix());
  EXPECT_EQ(weight_of_magnitude(magnitude.name), "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(weight_of_magnitude("model.layers.0.mlp.down_proj.lora_A.weight"), "");
}

std::string refusal(const ArchSpec& arch, const std::string& target) {
  try {
    with_targets(arch, {target});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

// Other names are refused, with the names that could be meant.
TEST(AdapterTargets, RefusesWhatHasNoAdapter) {
  EXPECT_EQ(refusal(llama(), "qproj"),
            "adapter.targets: \"qproj\" is no module of config.json; possible are attention, mlp, "
            "all-linear, down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj");
  EXPECT_TRUE(
      refusal(llama(), "lm_head")
          .starts_with("adapter.targets: \"lm_head\" is lm_head, which cannot have an adapter"))
      << refusal(llama(), "lm_head");
  EXPECT_TRUE(refusal(llama(), "embed_tokens").find("cannot have an adapter") != std::string::npos);
}

// Every adapter of every layer drops inputs by a stream of its own, with the keys of the batch.
TEST(AdapterTargets, HaveDropoutOfTheirOwn) {
  ArchSpec arch = llama();
  arch.adapter = choose_adapters(arch, {.rank = 4, .dropout = 0.25, .targets = {"all-linear"}},
                                 "adapter.targets");
  MicroBatch batch;
  batch.dropout_keys = at::zeros({1}, at::kLong);
  std::set<int64_t> streams;
  for (const int64_t layer : {0, 1}) {
    const std::vector<ModuleParameter> parameters = block_parameters(arch, {}, layer);
    const ModuleIndex index(parameters);
    const std::vector<at::Tensor> values(parameters.size());
    for (const Module module : {Module::kQuery, Module::kKey, Module::kValue, Module::kOutput,
                                Module::kGate, Module::kUp, Module::kDown}) {
      const InputDropout dropout = index.linear(values, module, batch).lora_dropout;
      EXPECT_TRUE(dropout.drops());
      EXPECT_EQ(dropout.share, 0.25);
      streams.insert(dropout.stream);
      EXPECT_FALSE(index.linear(values, module, {}).lora_dropout.drops());
    }
  }
  EXPECT_EQ(streams.size(), 14u);
  EXPECT_TRUE(make_model_spec(arch, {}).has_dropout());
  EXPECT_FALSE(make_model_spec(with_targets(llama(), {"all-linear"}), {}).has_dropout());
}

// Everything but adapters and named modules is frozen; names mean what modules_to_save means.
TEST(AdapterFreeze, LeavesAdaptersAndNamedModules) {
  ModelSpec model = make_model_spec(with_targets(llama(), {"q_proj"}), {});
  freeze_base(model, std::vector<std::string>{"input_layernorm", "lm_head"}, "adapter.train");
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      const bool named =
          parameter.name.ends_with("input_layernorm.weight") || parameter.name == "lm_head.weight";
      EXPECT_EQ(parameter.frozen, !named && !parameter.adapter) << parameter.name;
    }
  }
  EXPECT_EQ(trained_modules(model).size(), 13u);
  EXPECT_THROW(freeze_base(model, std::vector<std::string>{"nothing"}, "adapter.train"),
               ConfigError);
  ModelSpec tied = make_model_spec(with_targets(llama(true), {"q_proj"}), {});
  EXPECT_THROW(freeze_base(tied, std::vector<std::string>{"embed_tokens"}, "adapter.train"),
               ConfigError);
}

// An adapter has the name of its module, as in PEFT's files.
TEST(AdapterFreeze, NamesAdaptersByTheirModules) {
  EXPECT_EQ(adapter_names("h.0.attn.c_attn").a, "h.0.attn.c_attn.lora_A.weight");
}

// The merged model has the parameters of the files, and those that change are not frozen.
TEST(AdapterFreeze, MergedModelHasTheFilesParameters) {
  ModelSpec model = make_model_spec(with_targets(llama(), {"q_proj"}), {});
  freeze_base(model, {}, "adapter.train");
  const ModelSpec merged = merged_spec(with_targets(llama(), {"q_proj"}), model);
  const ModelSpec files = make_model_spec(llama(), {});
  ASSERT_EQ(merged.units.size(), files.units.size());
  for (size_t unit = 0; unit < files.units.size(); ++unit) {
    ASSERT_EQ(merged.units[unit].parameters.size(), files.units[unit].parameters.size());
    for (size_t i = 0; i < files.units[unit].parameters.size(); ++i) {
      const ParamSpec& parameter = merged.units[unit].parameters[i];
      EXPECT_EQ(parameter.name, files.units[unit].parameters[i].name);
      EXPECT_EQ(parameter.frozen, !parameter.name.ends_with("q_proj.weight")) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace longshore
