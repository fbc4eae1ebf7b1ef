// Gemma 4's config.json: sizes by layer in both spellings, and the parts that are refused.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/errors.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"
#include "model/parameters/unit_cut.h"

namespace longshore {
namespace {

Json gemma4(const std::string& changes) {
  Json config = Json::parse(R"({"model_type": "gemma4_text", "vocab_size": 64, "hidden_size": 16,
    "intermediate_size": 40, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "hidden_size_per_layer_input": 0,
    "sliding_window": 5})");
  config.merge_patch(Json::parse(changes));
  return config;
}

ArchSpec read(const std::string& changes) {
  return read_arch_spec(gemma4(changes), "config.json");
}

void expect_problem(const Json& config, const std::string& part) {
  try {
    read_arch_spec(config, "config.json");
    FAIL() << "no problem, expected " << part;
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// Goal: published files give full layers their sizes by two keys, of which the second counts only
// where values are keys; the last layer is full whatever the file says.
TEST(Gemma4, FullLayersHaveTheirSizesInThePublishedSpelling) {
  const ArchSpec plain = read(R"({"num_global_key_value_heads": 1})");
  EXPECT_EQ(plain.layers[4].window, 5);
  EXPECT_TRUE(plain.layers[4].local_rope);
  EXPECT_EQ(plain.of_layer(plain.layers[4]).head_dim, 8);
  for (const size_t full : {5, 6}) {
    const LayerSpec& layer = plain.layers[full];
    EXPECT_EQ(layer.window, 0);
    EXPECT_FALSE(layer.local_rope || layer.values_are_keys);
    EXPECT_EQ(plain.of_layer(layer).head_dim, 512);
    EXPECT_EQ(plain.of_layer(layer).kv_heads, 2);
    EXPECT_EQ(layer.attention_scale, 1.0);
  }
  EXPECT_EQ(plain.rope.turning, 0.25);
  EXPECT_EQ(plain.rope.theta, 1e6);
  EXPECT_EQ(plain.local_rope.turning, 1.0);
  EXPECT_EQ(plain.local_rope.theta, 1e4);
  EXPECT_TRUE(plain.tied_by_config);

  const ArchSpec shared = read(R"({"num_global_key_value_heads": 1, "attention_k_eq_v": true,
    "global_head_dim": 12})");
  EXPECT_TRUE(shared.layers[5].values_are_keys);
  EXPECT_FALSE(shared.layers[4].values_are_keys);
  EXPECT_EQ(shared.of_layer(shared.layers[5]).kv_heads, 1);
  EXPECT_EQ(shared.of_layer(shared.layers[5]).head_dim, 12);
  // Query, key, two norms, and what writes back; 4 heads of 12 values.
  const ModelSpec model = make_model_spec(shared, {});
  for (const ParamSpec& parameter : model.units[6].parameters) {
    EXPECT_EQ(parameter.name.find("v_proj"), std::string::npos);
    if (parameter.name.ends_with("q_proj.weight")) {
      EXPECT_EQ(parameter.shape, (std::vector<int64_t>{48, 16}));
    }
    EXPECT_EQ(parameter.frozen, parameter.name == "model.layers.5.layer_scalar");
  }
}

// Goal: the sizes that transformers 5.23 writes by the layer's number are read, and the keys of
// published files mean nothing beside them.
TEST(Gemma4, SizesByLayerAreThoseOfTransformers) {
  const ArchSpec arch = read(R"({"global_head_dim": 64, "attention_k_eq_v": true,
    "per_layer_config": {"5": {"head_dim": 16, "num_key_value_heads": 4}}})");
  EXPECT_EQ(arch.of_layer(arch.layers[5]).head_dim, 16);
  EXPECT_EQ(arch.of_layer(arch.layers[5]).kv_heads, 4);
  EXPECT_EQ(arch.of_layer(arch.layers[6]).head_dim, 8);
  expect_problem(gemma4(R"({"per_layer_config": {"7": {"head_dim": 16}}})"), "has '7'");
  expect_problem(gemma4(R"({"per_layer_config": {"x": {"head_dim": 16}}})"), "has 'x'");
  expect_problem(gemma4(R"({"per_layer_config": []})"), "must be an object");
  expect_problem(gemma4(R"({"per_layer_config": {"5": {"rms_norm_eps": 1e-5}}})"),
                 "'rms_norm_eps' is not supported for a single layer");
  expect_problem(gemma4(R"({"per_layer_config": {"5": {"num_key_value_heads": 3}}})"),
                 "the heads must be a multiple");
  expect_problem(gemma4(R"({"global_head_dim": 15})"), "'global_head_dim'");
}

// Goal: experts run beside the MLP of every layer where the switch is on, and their sizes alone
// mean nothing; the names are those of published files.
TEST(Gemma4, ExpertsRunBesideTheMlp) {
  const std::string sizes = R"("num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12)";
  EXPECT_EQ(read("{" + sizes + "}").moe.experts, 0);
  const ArchSpec arch = read(R"({"enable_moe_block": true, )" + sizes + "}");
  EXPECT_TRUE(arch.moe.beside && arch.moe.fused && arch.moe.renormalise);
  EXPECT_TRUE(arch.layers[0].sparse && arch.layers[6].sparse);
  std::map<std::string, std::vector<int64_t>> shapes;
  const ModelSpec model = make_model_spec(arch, {});
  for (const ParamSpec& parameter : model.units[1].parameters) {
    shapes[parameter.name] = parameter.shape;
  }
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.at("model.layers.0.experts.gate_up_proj"), (Shape{4, 24, 16}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.down_proj.weight"), (Shape{16, 40}));
  EXPECT_EQ(shapes.at("model.layers.0.router.proj.weight"), (Shape{4, 16}));
  EXPECT_EQ(shapes.at("model.layers.0.router.scale"), (Shape{16}));
  EXPECT_EQ(shapes.at("model.layers.0.router.per_expert_scale"), (Shape{4}));
  EXPECT_TRUE(shapes.contains("model.layers.0.post_feedforward_layernorm_2.weight"));
  expect_problem(gemma4(R"({"enable_moe_block": true})"), "'enable_moe_block' = true needs");
  expect_problem(gemma4(R"({"enable_moe_block": true, "num_experts": 2, "top_k_experts": 3,
    "moe_intermediate_size": 8})"),
                 "top_k_experts of at most num_experts");
}

// Goal: the last layers read keys and values of the last layer of their type before them, have none
// of their own, and may have MLPs of twice the width; what transformers cannot run is refused.
TEST(Gemma4, TheLastLayersReadKeysAndValuesOfEarlierOnes) {
  const ArchSpec arch = read(R"({"num_kv_shared_layers": 3, "use_double_wide_mlp": true,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention",
                    "sliding_attention", "full_attention", "full_attention"]})");
  std::vector<int64_t> sources, widths;
  for (const LayerSpec& layer : arch.layers) {
    sources.push_back(layer.keys_of);
    widths.push_back(arch.of_layer(layer).intermediate);
  }
  EXPECT_EQ(sources, (std::vector<int64_t>{-1, -1, -1, -1, 2, 3, 3}));
  EXPECT_EQ(widths, (std::vector<int64_t>{40, 40, 40, 40, 80, 80, 80}));
  EXPECT_EQ(arch.keys_behind(1), std::vector<int64_t>{});
  EXPECT_EQ(arch.keys_behind(3), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(arch.keys_behind(4), (std::vector<int64_t>{3}));
  // The keys of two sliding heads of 8 values, then those of two full heads of 512.
  const ModelSpec model = make_model_spec(arch, {});
  const std::vector<CarryTensorSpec>& made = model.units[4].carry_out;
  ASSERT_EQ(made.size(), 5u);
  EXPECT_EQ(made[1].passes, 1);
  EXPECT_EQ(made[2].elements_per_position, 16);
  EXPECT_EQ(made[3].passes, std::nullopt);
  EXPECT_EQ(made[4].elements_per_position, 1024);
  EXPECT_TRUE(made[1].wide_gradient && made[4].wide_gradient);
  EXPECT_EQ(model.units[5].carry_out.at(1).passes, 3);
  EXPECT_EQ(model.units[7].carry_out.size(), 1u);
  for (const ParamSpec& parameter : model.units[6].parameters) {
    EXPECT_EQ(parameter.name.find("self_attn.k_"), std::string::npos) << parameter.name;
    EXPECT_EQ(parameter.name.find("self_attn.v_"), std::string::npos) << parameter.name;
  }
  // Published files hold what no layer reads.
  EXPECT_TRUE(is_skipped_tensor(arch, "model.layers.5.self_attn.k_norm.weight"));
  EXPECT_FALSE(is_skipped_tensor(arch, "model.layers.3.self_attn.k_norm.weight"));

  expect_problem(gemma4(R"({"num_kv_shared_layers": 2})"), "none of its type");
  expect_problem(gemma4(R"({"num_kv_shared_layers": 7})"), "none of its type");
  expect_problem(gemma4(R"({"num_kv_shared_layers": 1, "per_layer_config":
    {"5": {"head_dim": 16}}})"),
                 "heads have other sizes");
}

// Goal: inputs of layers have two units of their own before the blocks, and pass through all blocks
// but the last, whole and cut; an absent width means 256.
TEST(Gemma4, LayersHaveInputsOfTheirOwn) {
  Json absent = gemma4("{}");
  absent.erase("hidden_size_per_layer_input");
  const ArchSpec published = read_arch_spec(absent, "config.json");
  EXPECT_EQ(published.layer_input, 256);
  EXPECT_EQ(published.layer_input_rows, 262144);
  const ArchSpec arch = read(R"({"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1,
    "vocab_size_per_layer_input": 70})");
  const ModelSpec model = make_model_spec(arch, {});
  ASSERT_EQ(model.units.size(), 11u);
  const UnitSpec &table = model.units[1], &inputs = model.units[2];
  EXPECT_EQ(table.parameters.at(0).name, "model.embed_tokens_per_layer.weight");
  EXPECT_EQ(table.parameters.at(0).shape, (std::vector<int64_t>{70, 56}));
  EXPECT_FALSE(table.backward_reads_parameters);
  EXPECT_TRUE(table.carry_out.at(1).running);
  EXPECT_EQ(inputs.parameters.at(0).shape, (std::vector<int64_t>{56, 16}));
  EXPECT_EQ(inputs.parameters.at(1).name, "model.per_layer_projection_norm.weight");
  EXPECT_EQ(inputs.carry_out.at(1).elements_per_position, 56);
  EXPECT_EQ(model.units[3].carry_out.at(1).passes, 1);
  // The keys of layer 5 lie behind the inputs.
  EXPECT_EQ(model.units[8].carry_out.at(2).elements_per_position, 1024);
  EXPECT_EQ(model.units[9].carry_out.size(), 1u);

  const UnitPolicy pieces{.kind = UnitPolicy::Kind::kPiece, .classes = {}, .groups = {}};
  const ModelSpec cut = cut_units(arch, model, cut_for(pieces, arch));
  EXPECT_EQ(unit_classes(arch, cut).at(1), "LayerInputs");
  EXPECT_EQ(cut.units.at(cut.units.size() - 3).carry_out.size(), 2u);  // of the last attention
  EXPECT_EQ(cut.parameter_elements(), model.parameter_elements());
}

// Goal: what would change the numbers and is not here is refused with its key.
TEST(Gemma4, OtherPartsAreRefusedByName) {
  expect_problem(gemma4(R"({"hidden_size_per_layer_input": 256, "enable_moe_block": true,
    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12})"),
                 "'hidden_size_per_layer_input' other than 0 is not supported with experts");
  expect_problem(gemma4(R"({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 63})"),
                 "'vocab_size_per_layer_input' is less than vocab_size");
  expect_problem(gemma4(R"({"use_bidirectional_attention": "all"})"), "= 'all' is not supported");
  expect_problem(gemma4(R"({"rope_theta": 1e4})"), "'rope_theta' is not read by this family");
  expect_problem(gemma4(R"({"rope_parameters": {"rope_type": "default"}})"),
                 "lacks 'full_attention'");
  expect_problem(gemma4(R"({"attn_logit_softcapping": 50.0})"), "attn_logit_softcapping");
  EXPECT_EQ(read(R"({"use_bidirectional_attention": "vision", "final_logit_softcapping": 30.0,
    "use_double_wide_mlp": true})")
                .logit_cap,
            30.0);
  expect_problem({{"model_type", "gemma4_unified"}, {"text_config", gemma4("{}")}},
                 "'gemma4_unified' is not supported");
  // Unlike Gemma 3's wrapper, that of Gemma 4 caps logits.
  const Json wrapper = {{"model_type", "gemma4"},
                        {"text_config", gemma4(R"({"final_logit_softcapping": 30.0})")}};
  EXPECT_EQ(read_arch_spec(wrapper, "config.json").logit_cap, 30.0);
}

}  // namespace
}  // namespace longshore
