// Targets of adapters: which matrices get one, with which shapes and names, and what is trained.
#include "model/parameters/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "model/decoder/decoder_units.h"
#include "model/families/families.h"
#include "model/parameters/adapter_values.h"
#include "model/parameters/model_spec.h"
#include "model/parameters/unit_cut.h"
#include "model/units/differentiable_ops.h"

namespace longshore {
namespace {

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
std::vector<std::string> adapted_in(const ArchSpec& arch, const std::string& unit) {
  std::vector<std::string> names;
  const ModelSpec model = make_model_spec(arch, {});
  const auto found = std::ranges::find(model.units, unit, &UnitSpec::name);
  if (found == model.units.end()) return {"no unit " + unit};
  for (const ParamSpec& parameter : found->parameters) {
    const std::string end = ".lora_A.weight";
    if (parameter.name.ends_with(end)) {
      names.push_back(parameter.name.substr(0, parameter.name.size() - end.size()));
    }
  }
  return names;
}

std::vector<std::string> adapted_in(const ArchSpec& arch, size_t block) {
  return adapted_in(arch, "block." + std::to_string(block));
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

ArchSpec gemma4(bool experts) {
  Json config = {{"model_type", "gemma4_text"}, {"vocab_size", 32},
                 {"hidden_size", 16},           {"intermediate_size", 24},
                 {"num_hidden_layers", 6},      {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},    {"hidden_size_per_layer_input", 0},
                 {"attention_k_eq_v", true}};
  if (experts) {
    config.update({{"enable_moe_block", true},
                   {"num_experts", 4},
                   {"top_k_experts", 2},
                   {"moe_intermediate_size", 12}});
  }
  return read_arch_spec(config, "config.json");
}

// Goal: a layer of Gemma 4 whose values are keys has no adapter of values, and the one of its
// queries has the size of its heads; experts beside an MLP have none.
TEST(Adapter, Gemma4HasTheTargetsOfEachLayer) {
  const ArchSpec arch = with_targets(gemma4(false), {"all-linear"});
  EXPECT_EQ(adapted_in(arch, 0).size(), 7u);
  EXPECT_EQ(adapted_in(arch, 5).size(), 6u);
  EXPECT_EQ(adapted_in(with_targets(gemma4(false), {"v_proj"}), 5).size(), 0u);
  const ModelSpec model = make_model_spec(arch, {});
  for (const ParamSpec& parameter : model.units.at(6).parameters) {
    if (parameter.name.ends_with("q_proj.lora_B.weight")) {
      EXPECT_EQ(parameter.shape.front(), 4 * 512);
    }
  }
  EXPECT_EQ(adapted_in(with_targets(gemma4(true), {"attention"}), 5).size(), 3u);
  EXPECT_THROW(with_targets(gemma4(true), {"mlp"}), ConfigError);
}

// Goal: a layer that reads the keys and values of another has no adapters of them.
TEST(Adapter, LayersThatShareKeysHaveFewerTargets) {
  const ArchSpec arch = read_arch_spec({{"model_type", "gemma4_text"},
                                        {"vocab_size", 32},
                                        {"hidden_size", 16},
                                        {"intermediate_size", 24},
                                        {"num_hidden_layers", 8},
                                        {"num_attention_heads", 4},
                                        {"num_key_value_heads", 2},
                                        {"hidden_size_per_layer_input", 0},
                                        {"num_kv_shared_layers", 2}},
                                       "config.json");
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 5).size(), 7u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 6).size(), 5u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"k_proj"}), 6).size(), 0u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"attention"}), 7).size(), 2u);
  ArchSpec with_inputs = arch;
  with_inputs.layer_input = 4, with_inputs.layer_input_rows = 32;
  EXPECT_EQ(adapted_in(with_targets(with_inputs, {"all-linear"}), 6).size(), 7u);
  EXPECT_EQ(adapted_in(with_targets(with_inputs, {"all-linear"}), "layer_inputs").size(), 1u);
  EXPECT_EQ(adapted_in(with_targets(with_inputs, {"per_layer_input_gate"}), 6).size(), 1u);
  EXPECT_THROW(with_targets(with_inputs, {"embed_tokens_per_layer"}), ConfigError);
}

// Goal: the gate of attention is a target, by its own name too, which is also one of the MLP.
TEST(Adapter, AllLinearIncludesTheGateOfAttention) {
  const Json text = {
      {"model_type", "muse_glimmer_text"}, {"vocab_size", 32},       {"hidden_size", 16},
      {"intermediate_size", 24},           {"num_hidden_layers", 4}, {"num_attention_heads", 4},
      {"num_key_value_heads", 2},          {"head_dim", 4}};
  const ArchSpec arch =
      read_arch_spec({{"model_type", "muse_glimmer"}, {"text_config", text}}, "config.json");
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 0).size(), 8u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"attention"}), 0).size(), 5u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"mlp"}), 0).size(), 3u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"gate_proj"}), 0).size(), 2u);
  EXPECT_THROW(with_targets(arch, {"embed_tokens"}), ConfigError);  // its rows are normed
}

// Goal: a layer with a gated convolution has the targets that PEFT takes for all linear modules.
TEST(Adapter, AllLinearIncludesTheMatricesOfGatedConvolutions) {
  const ArchSpec arch = read_arch_spec({{"model_type", "lfm2"},
                                        {"vocab_size", 32},
                                        {"hidden_size", 16},
                                        {"block_ff_dim", 24},
                                        {"num_hidden_layers", 2},
                                        {"full_attn_idxs", {1}},
                                        {"num_attention_heads", 4},
                                        {"num_key_value_heads", 2}},
                                       "config.json");
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 0).size(), 5u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 1).size(), 7u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"attention"}), 0).size(), 2u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"conv.out_proj"}), 1).size(), 0u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"w1"}), 1).size(), 1u);
  EXPECT_THROW(with_targets(arch, {"conv.conv"}), ConfigError);
}

// Goal: Mamba-2 has the one target that PEFT allows, its first matrix.
TEST(Adapter, MambaAdaptsItsFirstMatrixAlone) {
  const ArchSpec arch = read_arch_spec({{"model_type", "nemotron_h"},
                                        {"vocab_size", 32},
                                        {"hidden_size", 16},
                                        {"hybrid_override_pattern", "M-*"}},
                                       "config.json");
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 0).size(), 1u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"all-linear"}), 1).size(), 2u);
  EXPECT_EQ(adapted_in(with_targets(arch, {"attention"}), 2).size(), 4u);
  EXPECT_THROW(with_targets(arch, {"out_proj"}), ConfigError);
}

// Goal: the experts of Nemotron-H are adapted where they are named; their up has the rank of
// others.
TEST(Adapter, ExpertsWithoutGatesAreAdaptedWhereTheyAreNamed) {
  using Names = std::vector<std::string>;
  const ArchSpec arch = read_arch_spec({{"model_type", "nemotron_h"},
                                        {"vocab_size", 32},
                                        {"hidden_size", 16},
                                        {"n_routed_experts", 4},
                                        {"moe_intermediate_size", 12},
                                        {"moe_latent_size", 8},
                                        {"hybrid_override_pattern", "ME*"}},
                                       "config.json");
  EXPECT_THROW(with_targets(arch, {"all-linear"}), ConfigError);
  EXPECT_THROW(with_targets(arch, {"fc1_latent_proj"}), ConfigError);
  EXPECT_THROW(with_targets(arch, {"up_proj"}), ConfigError) << "down_proj is missing";
  EXPECT_EQ(adapted_in(with_targets(arch, {"attention"}), 1).size(), 0u);
  const ArchSpec named = with_targets(arch, {"up_proj", "down_proj", "gate"});
  EXPECT_EQ(adapted_in(named, 1), adapted_in(with_targets(arch, {"mlp", "gate.weight"}), 1));
  EXPECT_EQ(target_parameters(named), (Names{"down_proj", "gate.weight", "up_proj"}));
  const std::vector<ParamSpec> parameters = make_model_spec(named, {}).units.at(2).parameters;
  const std::span<const ParamSpec> last = std::span(parameters).last(4);
  EXPECT_EQ(last[0].shape, (std::vector<int64_t>{4, 8, 8}));
  EXPECT_EQ(last[1].shape, (std::vector<int64_t>{4, 12, 8}));
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

// "all-linear" means what PEFT 0.21 takes it for: experts and router, and of a dense layer the
// attention alone. Gate and up of experts have twice the rank.
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
  EXPECT_EQ(arch.adapter.size_of(0, Module::kExpertsGateUp).scaling, 2.0);
  const ArchSpec one = with_targets(qwen3_moe(), {"model.layers.2.mlp.experts.*"});
  EXPECT_EQ(target_parameters(one), (Names{"model.layers.2.mlp.experts.down_proj",
                                           "model.layers.2.mlp.experts.gate_up_proj"}));
}

ArchSpec gpt_oss() {
  return read_arch_spec({{"model_type", "gpt_oss"},
                         {"vocab_size", 32},
                         {"hidden_size", 16},
                         {"intermediate_size", 24},
                         {"num_hidden_layers", 2},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"head_dim", 8},
                         {"max_position_embeddings", 64},
                         {"rms_norm_eps", 1e-5},
                         {"hidden_act", "silu"},
                         {"eos_token_id", 1},
                         {"attention_bias", true},
                         {"num_local_experts", 5},
                         {"num_experts_per_tok", 2},
                         {"sliding_window", 5},
                         {"swiglu_limit", 7.0},
                         {"layer_types", {"sliding_attention", "full_attention"}},
                         {"rope_theta", 150000.0}},
                        "config.json");
}

// In gpt_oss PEFT's "all-linear" has no experts. Named ones have the rank of other matrices, also
// gate and up, and shapes that do not depend on the layout of the stored matrices.
TEST(AdapterTargets, OfGptOssIncludeExpertsWhereNamed) {
  using Names = std::vector<std::string>;
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(adapted_in(with_targets(gpt_oss(), {"all-linear"}), 0).size(), 4u);
  EXPECT_FALSE(doubles_gate_up(gpt_oss()));
  EXPECT_TRUE(doubles_gate_up(qwen3_moe()));
  ArchSpec arch = gpt_oss();
  arch.adapter = choose_adapters(
      arch, {.rank = 4, .gate_up_doubled = false, .targets = {"experts.gate_up_proj", "down_proj"}},
      "");
  const ModelSpec model = make_model_spec(arch, {});
  const std::span<const ParamSpec> last = std::span(model.units.at(1).parameters).last(4);
  EXPECT_EQ(last[0].name, "model.layers.0.mlp.experts.base_layer.lora_A.weight");
  EXPECT_EQ(last[0].shape, (Shape{5, 4, 16}));
  EXPECT_EQ(last[1].shape, (Shape{5, 48, 4}));
  EXPECT_EQ(last[2].shape, (Shape{5, 4, 24}));
  EXPECT_EQ(last[3].shape, (Shape{5, 16, 4}));
  EXPECT_EQ(target_parameters(arch), (Names{"down_proj", "gate_up_proj"}));
}

// With rsLoRA the doubled rank of gate and up is under the root: 16 / sqrt(8) beside 8 / sqrt(4).
TEST(AdapterTargets, OfExpertsAreScaledByTheirOwnRank) {
  const AdapterSpec adapter = choose_adapters(
      qwen3_moe(), {.rank = 4, .alpha = 8.0, .rslora = true, .targets = {"mlp"}}, "");
  EXPECT_DOUBLE_EQ(adapter.size_of(0, Module::kExpertsGateUp).scaling, 16.0 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(adapter.size_of(0, Module::kExpertsDown).scaling, 4.0);
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
  EXPECT_EQ(arch.adapter.size_of(0, Module::kDown).scaling, 2.0);
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
          .size_of(0, Module::kDown)
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
            "all-linear, down_proj, embed_tokens, gate_proj, k_proj, lm_head, o_proj, q_proj, "
            "up_proj, v_proj");
}

// The embedding and the head have adapters where they are named, in PEFT's shapes and with its
// first values. Gradients of the embedding's adapter need its values.
TEST(AdapterTargets, IncludeEmbeddingAndHeadWhereNamed) {
  using Shape = std::vector<int64_t>;
  using Names = std::vector<std::string>;
  const ArchSpec arch = with_targets(llama(), {"embed_tokens", "lm_head"});
  const ModelSpec model = make_model_spec(arch, {});
  const std::vector<ParamSpec>& first = model.units.front().parameters;
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[1].name, "model.embed_tokens.lora_embedding_A");
  EXPECT_EQ(first[2].name, "model.embed_tokens.lora_embedding_B");
  EXPECT_EQ(peft_shape(first[1]), (Shape{4, 32}));
  EXPECT_EQ(peft_shape(first[2]), (Shape{16, 4}));
  EXPECT_EQ(first[1].init.kind, InitSpec::Kind::kZeros);
  EXPECT_EQ(first[2].init, (InitSpec{.kind = InitSpec::Kind::kNormal, .standard_deviation = 1.0}));
  EXPECT_TRUE(model.units.front().backward_reads_parameters);
  const std::vector<ParamSpec>& last = model.units.back().parameters;
  ASSERT_EQ(last.size(), 4u);
  EXPECT_EQ(last[2].name, "lm_head.lora_A.weight");
  EXPECT_EQ(last[2].shape, (Shape{4, 16}));
  EXPECT_EQ(last[3].shape, (Shape{32, 4}));
  EXPECT_EQ(target_names(arch), (Names{"embed_tokens", "lm_head"}));
  const ModelSpec plain = make_model_spec(with_targets(llama(), {"all-linear"}), {});
  EXPECT_EQ(plain.units.front().parameters.size(), 1u);
  EXPECT_EQ(plain.units.back().parameters.size(), 2u);
  EXPECT_FALSE(plain.units.front().backward_reads_parameters);
}

// Goal: A of two tokens and rank 3 by hand. PEFT's has a column for each token.
TEST(AdapterTargets, OfAnEmbeddingAreStoredInTheOrderOfPeft) {
  const ParamSpec a{
      .name = "embed_tokens.lora_embedding_A", .shape = {2, 3}, .adapter = true, .init = {}};
  const std::vector<float> own = {1, 2, 3, 4, 5, 6}, peft = {1, 4, 2, 5, 3, 6};
  EXPECT_TRUE(peft_reorders(a));
  EXPECT_EQ(to_peft(a, own), peft);
  EXPECT_EQ(from_peft(a, peft), own);
}

// With DoRA a magnitude belongs to each column of the embedding, and to each token of the head.
TEST(AdapterTargets, OfTablesHaveMagnitudes) {
  using Shape = std::vector<int64_t>;
  ArchSpec arch = llama();
  arch.adapter =
      choose_adapters(arch, {.rank = 4, .dora = true, .targets = {"embed_tokens", "lm_head"}}, "");
  const ModelSpec model = make_model_spec(arch, {});
  const std::vector<ParamSpec>& first = model.units.front().parameters;
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[3].name, "model.embed_tokens.lora_magnitude_vector");
  EXPECT_EQ(peft_shape(first[3]), (Shape{16}));
  EXPECT_EQ(weight_of_magnitude(first[3].name), first[0].name);
  const std::vector<ParamSpec>& last = model.units.back().parameters;
  ASSERT_EQ(last.size(), 5u);
  EXPECT_EQ(last[4].name, "lm_head.lora_magnitude_vector");
  EXPECT_EQ(peft_shape(last[4]), (Shape{32}));
}

// A table with an adapter is one unit. An adapter on one of a tied pair is refused, of DoRA too,
// because PEFT merges it into both.
TEST(AdapterTargets, OfTablesKeepThemWholeAndUntied) {
  UnitPolicy pieces{.kind = UnitPolicy::Kind::kPiece, .classes = {}, .groups = {}};
  pieces.rows = 16;
  EXPECT_GT(cut_for(pieces, llama()).head_rows, 0);
  const UnitCut cut = cut_for(pieces, with_targets(llama(), {"lm_head"}));
  EXPECT_EQ(cut.head_rows, 0);
  EXPECT_GT(cut.embedding_rows, 0);
  EXPECT_EQ(cut_for(pieces, with_targets(llama(), {"embed_tokens"})).embedding_rows, 0);
  for (const std::string target : {"embed_tokens", "lm_head"}) {
    ArchSpec tied = with_targets(llama(/*tied=*/true), {target});
    EXPECT_THROW(check_tied_targets(tied, make_model_spec(tied, {}), ""), ConfigError) << target;
    tied.adapter = choose_adapters(tied, {.rank = 4, .dora = true, .targets = {target}}, "");
    EXPECT_THROW(check_tied_targets(tied, make_model_spec(tied, {}), ""), ConfigError) << target;
    const ArchSpec untied = with_targets(llama(), {target});
    EXPECT_NO_THROW(check_tied_targets(untied, make_model_spec(untied, {}), ""));
  }
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
    const ModuleIndex index(parameters, arch);
    const std::vector<at::Tensor> values(parameters.size());
    for (const Module module : {Module::kQuery, Module::kKey, Module::kValue, Module::kOutput,
                                Module::kGate, Module::kUp, Module::kDown}) {
      const InputDropout dropout = index.linear(values, module, batch).lora.dropout;
      EXPECT_TRUE(dropout.drops());
      EXPECT_EQ(dropout.share, 0.25);
      streams.insert(dropout.stream);
      EXPECT_FALSE(index.linear(values, module, {}).lora.dropout.drops());
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
  ModelSpec tied = make_model_spec(with_targets(llama(true), {"q_proj"}), {}), other = tied;
  EXPECT_THROW(freeze_base(other, std::vector<std::string>{"lm_head"}, "adapter.train"),
               ConfigError);
  freeze_base(tied, std::vector<std::string>{"embed_tokens"}, "adapter.train");
  EXPECT_EQ(trained_tied_table(tied), &tied.units.front().parameters.front());
  EXPECT_EQ(trained_tied_table(model), nullptr);
}

// Biases of adapted modules, or all, are trained beside adapters; their modules' weights are not.
TEST(AdapterFreeze, LeavesTheBiasesOfPeft) {
  ArchSpec arch = gpt_oss();
  arch.adapter = choose_adapters(arch, {.rank = 4, .targets = {"q_proj"}}, "adapter.targets");
  for (const AdapterBias bias : {AdapterBias::kNone, AdapterBias::kAdapted, AdapterBias::kAll}) {
    ModelSpec model = make_model_spec(arch, {});
    freeze_base(model, {}, "adapter.train", bias);
    size_t trained = 0;
    for (const ParamSpec& parameter : model.whole_parameters()) {
      if (parameter.frozen || parameter.adapter) continue;
      const bool adapted = parameter.name.ends_with("q_proj.bias");
      EXPECT_TRUE(bias == AdapterBias::kAll ? parameter.name.ends_with(".bias") : adapted)
          << parameter.name;
      ++trained;
    }
    // Two layers have q, k, v, o and a router with biases.
    EXPECT_EQ(trained, bias == AdapterBias::kNone ? 0u : bias == AdapterBias::kAdapted ? 2u : 10u);
    EXPECT_TRUE(trained_modules(model).empty());
  }
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
