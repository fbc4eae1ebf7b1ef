// Families whose layers have a convolution: their config.json, and the convolution itself.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/errors.h"
#include "model/families/families.h"
#include "model/mixers/mixer_passes.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

// The keys of LFM2-1.2B's file on the hub that affect numbers.
Json lfm2() {
  return Json::parse(R"({"model_type": "lfm2", "block_auto_adjust_ff_dim": true,
    "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05,
    "block_use_swiglu": true, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "norm_eps": 1e-05,
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "use_pos_enc": true,
    "vocab_size": 65536})");
}

Json with(Json config, const std::string& more) {
  config.update(Json::parse(more));
  return config;
}

ArchSpec read(const Json& config) {
  return read_arch_spec(config, "config.json");
}

void expect_problem(const Json& config, const std::string& part) {
  try {
    read(config);
    ADD_FAILURE() << "no problem with " << part;
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.problems().size(), 1u) << part;
    EXPECT_NE(error.problems()[0].find(part), std::string::npos) << error.problems()[0];
  }
}

// Goal: a published file gives the model that its page describes: 1.2 billion parameters, tied, ten
// convolutions among sixteen layers.
TEST(ConvolutionFamilies, Lfm2IsReadAsPublished) {
  const ArchSpec arch = read(lfm2());
  EXPECT_EQ(make_model_spec(arch, {}).parameter_elements(), 1'170'340'608);
  EXPECT_EQ(arch.intermediate, 8192);
  EXPECT_EQ(std::ranges::count(arch.layers, MixerKind::kConvolution, &LayerSpec::mixer), 10);
  EXPECT_EQ(arch.layers[2].mixer, MixerKind::kAttention);
  EXPECT_TRUE(arch.tied_by_config && arch.qk_norm == QueryKeyNorm::kHead);
  EXPECT_EQ(arch.convolution.taps, 3);
  EXPECT_FALSE(arch.convolution.bias);
  EXPECT_EQ(arch.rope.theta, 1e6);
  EXPECT_EQ(arch.norm_eps, 1e-5);
}

// Goal: the width of the MLP follows the published rule, with and without its factor, and either
// key may give it.
TEST(ConvolutionFamilies, Lfm2HasTheWidthOfItsRule) {
  const auto width = [](const std::string& more) { return read(with(lfm2(), more)).intermediate; };
  EXPECT_EQ(width(R"({"block_auto_adjust_ff_dim": false})"), 12288);
  EXPECT_EQ(width(R"({"block_ff_dim": null, "intermediate_size": 10240})"), 6912);
  EXPECT_EQ(width(R"({"block_ff_dim": 100, "intermediate_size": 10240})"), 256);
  EXPECT_EQ(width(R"({"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 10})"), 10650);
  EXPECT_EQ(width(R"({"block_ffn_dim_multiplier": null, "block_ff_dim": 1000})"), 666);
  EXPECT_EQ(width(R"({"intermediate_size": 7})"), 8192);
}

// Goal: layers are read in both spellings, the newer first; a file that lists none has attention
// alone; the alias of the tie wins; what cannot be is refused.
TEST(ConvolutionFamilies, Lfm2ReadsItsLayersInBothSpellings) {
  const auto kinds = [](const Json& config) {
    std::string text;
    for (const LayerSpec& layer : read(config).layers) {
      text += layer.mixer == MixerKind::kConvolution ? 'c' : 'a';
    }
    return text;
  };
  Json small = with(lfm2(), R"({"num_hidden_layers": 4, "full_attn_idxs": [3]})");
  EXPECT_EQ(kinds(small), "ccca");
  EXPECT_EQ(kinds(with(small, R"({"full_attn_idxs": []})")), "cccc");
  EXPECT_EQ(kinds(with(small, R"({"full_attn_idxs": null})")), "aaaa");
  EXPECT_EQ(kinds(with(small, R"({"layer_types": ["conv", "conv", "full_attention", "conv"]})")),
            "ccac");
  EXPECT_FALSE(
      read(with(small, R"({"tie_embedding": false, "tie_word_embeddings": true})")).tied_by_config);
  expect_problem(with(small, R"({"layer_types": ["conv"]})"), "1 entries for 4 layers");
  expect_problem(with(small, R"({"layer_types": ["conv", "conv", "mamba", "conv"]})"), "'mamba'");
  expect_problem(with(small, R"({"full_attn_idxs": [-1]})"), "'full_attn_idxs'");
  expect_problem(with(small, R"({"conv_L_cache": 0})"), "'conv_L_cache'");
  expect_problem(with(small, R"({"conv_L_cache": 9})"), "'conv_L_cache'");
  expect_problem(with(small, R"({"conv_bias": 1})"), "'conv_bias'");
  expect_problem(with(small, R"({"block_multiple_of": 0})"), "'block_multiple_of'");
  expect_problem(with(small, R"({"num_experts": 8})"), "'num_experts'");
}

Json nemotron_h() {
  return Json::parse(R"({"model_type": "nemotron_h", "attention_bias": false, "chunk_size": 128,
    "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_size": 4096,
    "hybrid_override_pattern": "M-M*-", "intermediate_size": 21504, "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
    "mamba_proj_bias": false, "mlp_bias": false, "mlp_hidden_act": "relu2", "n_groups": 8,
    "n_routed_experts": 8, "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 5, "num_key_value_heads": 8, "residual_in_fp32": false,
    "moe_latent_size": null, "moe_shared_expert_overlap": true, "n_shared_experts": 1,
    "sliding_window": null, "ssm_state_size": 128, "tie_word_embeddings": false,
    "time_step_limit": [0.0, 1e9], "time_step_max": 0.1, "time_step_min": 0.001,
    "use_bias": false, "use_conv_bias": true, "vocab_size": 131072})");
}

// Goal: the layers of Nemotron-H are read in every spelling, and each is one part with one norm.
TEST(ConvolutionFamilies, NemotronHHasLayersOfOnePart) {
  const auto kinds = [](const Json& config) {
    std::string text;
    for (const LayerSpec& layer : read(config).layers) {
      EXPECT_NE(layer.has_mixer, layer.has_mlp);
      EXPECT_FALSE(layer.rotates);
      text += layer.has_mlp ? '-' : layer.mixer == MixerKind::kMamba ? 'M' : '*';
    }
    return text;
  };
  EXPECT_EQ(kinds(nemotron_h()), "M-M*-");
  EXPECT_EQ(kinds(with(nemotron_h(), R"({"num_hidden_layers": null, "layers_block_type":
    ["mamba", "attention", "mlp", "linear_attention", "full_attention"]})")),
            "M*-M*");
  const ArchSpec arch = read(nemotron_h());
  EXPECT_EQ(arch.mamba.mixed_width(), 8192 + 2 * 8 * 128);
  EXPECT_EQ(arch.mamba.taps, 4);
  EXPECT_EQ(arch.mamba.least_step, 0.001);
  EXPECT_TRUE(arch.mamba.convolution_bias && !arch.mamba.bias && !arch.gated);
  EXPECT_EQ(arch.activation, Activation::kReluSquared);
  EXPECT_EQ(block_parameters(arch, {}, 0).size(), 9u);
  EXPECT_EQ(block_parameters(arch, {}, 1).size(), 3u);
  EXPECT_EQ(block_parameters(arch, {}, 3).size(), 5u);
  EXPECT_TRUE(is_skipped_tensor(arch, "mtp.layers.0.norm.weight"));
  EXPECT_EQ(make_model_spec(arch, {}).units[1].parameters[0].name, "backbone.layers.0.norm.weight");
}

// Goal: layers of experts have one norm, a corrected router, experts without gates, and an expert
// for all tokens of its own width; two more matrices where the experts have a width of their own.
TEST(ConvolutionFamilies, NemotronHHasLayersOfExperts) {
  const Json config = with(nemotron_h(), R"({"hybrid_override_pattern": "ME*E-",
    "n_routed_experts": 128, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "norm_topk_prob": true, "routed_scaling_factor": 2.5})");
  const ArchSpec arch = read(config);
  EXPECT_EQ(arch.moe.experts, 128);
  EXPECT_EQ(arch.moe.top_k, 6);
  EXPECT_EQ(arch.moe.weight_scale, 2.5);
  EXPECT_EQ(arch.moe.shared_width, 3712);
  EXPECT_EQ(arch.moe.latent, 0);
  EXPECT_TRUE(arch.moe.correction && arch.moe.renormalise && !arch.moe.shared_switch);
  std::string layers;
  for (const LayerSpec& layer : arch.layers) {
    layers += layer.sparse ? 'E' : layer.has_mlp ? '-' : 'm';
    EXPECT_NE(layer.has_mixer, layer.has_mlp);
  }
  EXPECT_EQ(layers, "mEmE-");
  const auto parameters = [](const ArchSpec& read_arch) {
    return block_parameters(read_arch, {}, 1);
  };
  ASSERT_EQ(parameters(arch).size(), 5u + 2u * 128u);
  EXPECT_EQ(parameters(arch).back().spec.name, "layers.1.mixer.experts.127.down_proj.weight");
  EXPECT_EQ(parameters(arch).back().spec.shape, (std::vector<int64_t>{4096, 1856}));
  const ArchSpec latent = read(with(config, R"({"moe_latent_size": 1024})"));
  ASSERT_EQ(parameters(latent).size(), 7u + 2u * 128u);
  EXPECT_EQ(parameters(latent).at(7).spec.shape, (std::vector<int64_t>{1024, 1856}));
  EXPECT_EQ(parameters(latent).back().spec.shape, (std::vector<int64_t>{4096, 1024}));
  expect_problem(with(config, R"({"mlp_bias": true})"), "'mlp_bias'");
  expect_problem(with(config, R"({"n_group": 3})"), "'n_group'");
  expect_problem(with(config, R"({"moe_latent_size": 0})"), "'moe_latent_size'");
}

// Goal: what is not computed is refused.
TEST(ConvolutionFamilies, NemotronHRefusesWhatItDoesNotCompute) {
  expect_problem(with(nemotron_h(), R"({"hybrid_override_pattern": "Mx*M-"})"), "may hold");
  expect_problem(with(nemotron_h(), R"({"hybrid_override_pattern": null})"), "is missing");
  expect_problem(with(nemotron_h(), R"({"layers_block_type": ["mamba", "window"]})"), "'window'");
  expect_problem(with(nemotron_h(), R"({"num_hidden_layers": 6})"), "5 layers are listed");
  expect_problem(with(nemotron_h(), R"({"n_groups": 3})"), "not a multiple");
  expect_problem(with(nemotron_h(), R"({"mamba_hidden_act": "gelu"})"), "'mamba_hidden_act'");
  expect_problem(with(nemotron_h(), R"({"tie_word_embeddings": true})"), "'tie_word_embeddings'");
  expect_problem(with(nemotron_h(), R"({"ssm_state_size": 0})"), "'ssm_state_size'");
}

std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& values, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) {
    leaves.push_back(value.to(dtype, false, /*copy=*/true).requires_grad_(true));
  }
  return leaves;
}

// torch's convolution of each document alone.
at::Tensor plain_convolution(const std::vector<at::Tensor>& in, const std::vector<int64_t>& lengths,
                             bool biased, bool activated) {
  std::vector<at::Tensor> rows;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const at::Tensor x = in[0].narrow(0, begin, length).t().unsqueeze(0);
    const at::Tensor y =
        at::conv1d(x, in[1], biased ? in[2] : at::Tensor(), 1, in[1].size(2) - 1, 1, in[1].size(0));
    rows.push_back(y.squeeze(0).narrow(1, 0, length).t());
    begin += length;
  }
  const at::Tensor whole = at::cat(rows, 0);
  return activated ? at::silu(whole) : whole;
}

// Goal: with and without bias and activation, the convolution of packed documents and its gradients
// are torch's of each document alone, for documents shorter than the taps too.
TEST(CausalConvolution, IsThatOfEachDocumentAlone) {
  const std::vector<int64_t> lengths = {1, 7, 2, 40, 1, 3};
  constexpr int64_t kChannels = 5, kTaps = 4;
  std::vector<at::Tensor> parts;
  for (const int64_t length : lengths) parts.push_back(at::arange(length));
  const at::Tensor positions = at::cat(parts);
  at::manual_seed(5);
  const std::vector<at::Tensor> values{at::randn({positions.size(0), kChannels}, at::kDouble),
                                       at::randn({kChannels, 1, kTaps}, at::kDouble),
                                       at::randn({kChannels}, at::kDouble)};
  const at::Tensor grad = at::randn(values[0].sizes(), at::kDouble);
  const at::AutoGradMode grad_mode(true);
  for (const bool biased : {false, true}) {
    for (const bool activated : {false, true}) {
      const std::vector<at::Tensor> plain = leaves_of(values, at::kDouble);
      const std::vector<at::Tensor> own = leaves_of(values, at::kFloat);
      const at::Tensor expected = plain_convolution(plain, lengths, biased, activated);
      const at::Tensor got = causal_convolution(
          own[0], {.taps = own[1], .bias = biased ? own[2] : at::Tensor(), .activated = activated},
          positions);
      EXPECT_TRUE(at::allclose(got.to(at::kDouble), expected, 1e-5, 1e-5));
      const size_t count = biased ? 3 : 2;
      const auto right =
          torch::autograd::grad({expected}, {plain.begin(), plain.begin() + count}, {grad});
      const auto found =
          torch::autograd::grad({got}, {own.begin(), own.begin() + count}, {grad.to(at::kFloat)});
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(at::allclose(found[i].to(at::kDouble), right[i], 1e-4, 1e-5)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace longshore
