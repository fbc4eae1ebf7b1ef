// Low-rank adapters: the products with them, which matrices get one, and what is trained.
#include "model/adapter.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>

#include "base/errors.h"
#include "base/json.h"
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

// Returns an adapted matrix whose base is frozen.
LinearWeights adapted(int64_t in, int64_t out, bool transposed) {
  return {.weight = leaf(transposed ? at::IntArrayRef{in, out} : at::IntArrayRef{out, in}, false),
          .bias = leaf({out}, false),
          .lora_a = leaf({kRank, in}),
          .lora_b = leaf({out, kRank}),
          .lora_scaling = kScaling};
}

// The formula of LoRA in operations of LibTorch alone.
at::Tensor plain(const at::Tensor& x, const LinearWeights& one, bool transposed) {
  at::Tensor y = at::matmul(x, transposed ? one.weight : one.weight.t()) + one.bias;
  if (!one.lora_a.defined()) return y;
  return y + kScaling * at::matmul(at::matmul(x, one.lora_a.t()), one.lora_b.t());
}

void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-4)) << i;
  }
}

// A group of matrices of which some have adapters gives the values and gradients of the formula,
// with and without a norm, a trained norm, and a gradient of x.
TEST(AdaptedProducts, OfAGroupFollowTheFormula) {
  for (const bool transposed : {false, true}) {
    for (const bool normed : {false, true}) {
      for (const bool x_trained : {false, true}) {
        at::manual_seed(3);
        const at::Tensor x = leaf({kRows, kIn}, x_trained);
        std::array weights{adapted(kIn, kOut, transposed), adapted(kIn, 8, transposed),
                           adapted(kIn, 4, transposed)};
        weights[1].lora_a = weights[1].lora_b = at::Tensor();
        NormWeights norm;
        if (normed) norm = {leaf({kIn}, x_trained), {}, NormKind::kRms, 1e-5};
        std::vector<at::Tensor> inputs{weights[0].lora_a, weights[0].lora_b, weights[2].lora_a,
                                       weights[2].lora_b};
        if (x_trained) inputs.push_back(x);
        if (x_trained && normed) inputs.push_back(norm.weight);
        std::vector<at::Tensor> expected, grads;
        const at::Tensor in =
            normed ? x / at::sqrt((x * x).mean(-1, true) + 1e-5) * norm.weight : x;
        for (const LinearWeights& one : weights) {
          expected.push_back(plain(in, one, transposed));
          grads.push_back(at::randn(expected.back().sizes()));
        }
        // The matrix without an adapter takes part only where x has a gradient.
        const std::vector<size_t> roots =
            x_trained ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{0, 2};
        const auto gradients = [&](const std::vector<at::Tensor>& out) {
          std::vector<at::Tensor> chosen, given;
          for (const size_t i : roots) chosen.push_back(out[i]), given.push_back(grads[i]);
          return torch::autograd::grad(chosen, inputs, given);
        };
        const std::vector<at::Tensor> out = linear_group(x, norm, weights, transposed);
        expect_close(out, expected);
        if (!x_trained && normed) continue;  // autograd would leave out the frozen norm itself
        expect_close(gradients(out), gradients(expected));
      }
    }
  }
}

// Adapters in the first unit, below which nothing is trained: the frozen norm gets no gradient.
TEST(AdaptedProducts, BelowAFrozenNormAreTrained) {
  at::manual_seed(4);
  const at::Tensor x = leaf({kRows, kIn}, false);
  const NormWeights norm{leaf({kIn}, false), {}, NormKind::kRms, 1e-5};
  const std::array weights{adapted(kIn, kOut, false)};
  const at::Tensor in = normalise(x, norm.weight, {}, norm.kind, norm.eps);
  const std::vector<at::Tensor> inputs{weights[0].lora_a, weights[0].lora_b};
  const at::Tensor grad = at::randn({kRows, kOut});
  expect_close(torch::autograd::grad({linear_group(x, norm, weights, false)[0]}, inputs, {grad}),
               torch::autograd::grad({plain(in, weights[0], false)}, inputs, {grad}));
}

// The product behind the activation follows the formula, with a gate and without.
TEST(AdaptedProducts, BehindAnActivationFollowTheFormula) {
  for (const bool transposed : {false, true}) {
    for (const bool gated : {false, true}) {
      at::manual_seed(5);
      const at::Tensor gate = gated ? leaf({kRows, kIn}) : at::Tensor();
      const at::Tensor up = leaf({kRows, kIn});
      const LinearWeights down = adapted(kIn, kOut, transposed);
      std::vector<at::Tensor> inputs{up, down.lora_a, down.lora_b};
      if (gated) inputs.push_back(gate);
      const at::Tensor value = gated ? at::silu(gate) * up : at::silu(up);
      const at::Tensor grad = at::randn({kRows, kOut});
      const at::Tensor expected = plain(value, down, transposed);
      const auto wanted = torch::autograd::grad({expected}, inputs, {grad});
      const at::Tensor out = activate_and_project(gate, up, down, Activation::kSilu, transposed);
      expect_close({out}, {expected});
      expect_close(torch::autograd::grad({out}, inputs, {grad}), wanted);
    }
  }
}

// A graph whose values are not read gives gradients with the same bits.
TEST(AdaptedProducts, WithoutValuesHaveTheSameGradients) {
  at::manual_seed(6);
  const at::Tensor x = leaf({kRows, kIn});
  const std::array weights{adapted(kIn, kOut, false)};
  const std::vector<at::Tensor> inputs{x, weights[0].lora_a, weights[0].lora_b};
  const at::Tensor grad = at::randn({kRows, kOut});
  const auto computed =
      torch::autograd::grad({linear_group(x, {}, weights, false)[0]}, inputs, {grad});
  const auto unread = torch::autograd::grad(
      {linear_group(x, {}, weights, false, Values::kUnread)[0]}, inputs, {grad});
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::equal(computed[i], unread[i])) << i;
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
  for (const ParamSpec& parameter : make_model_spec(arch, {}).units.at(block + 1).parameters) {
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

std::string refusal(const ArchSpec& arch, const std::string& target) {
  try {
    with_targets(arch, {target});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

// What is no target is refused with what could be meant.
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

// The merged model has the parameters of the files, and those that change are not frozen.
TEST(AdapterFreeze, MergedModelHasTheFilesParameters) {
  ModelSpec model = make_model_spec(with_targets(llama(), {"q_proj"}), {});
  freeze_base(model, {}, "adapter.train");
  const ModelSpec merged = merged_spec(model);
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
