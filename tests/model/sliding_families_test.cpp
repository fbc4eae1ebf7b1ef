// Reading config.json of the families that rotate in sliding layers alone.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "model/families/families.h"
#include "tests/model/configs.h"

namespace longshore {
namespace {

// EXAONE 4 rotates where it slides; a window of null means that every layer rotates.
TEST(SlidingFamilies, Exaone4RotatesWhereItSlides) {
  const Json config = with(llama(), R"({"model_type": "exaone4", "num_hidden_layers": 5,
    "num_key_value_heads": 4, "sliding_window": 32})");
  const ArchSpec arch = read_arch_spec(config, "config.json");
  for (const size_t layer : {0, 1, 2, 3, 4}) {
    EXPECT_EQ(arch.layers[layer].rotates, layer != 3) << layer;
    EXPECT_EQ(arch.layers[layer].window, layer != 3 ? 32 : 0) << layer;
  }
  // Transformers reads no pattern beside layer_types.
  const Json published = with(config, R"({"sliding_window_pattern": "LLLG", "layer_types":
    ["full_attention", "sliding_attention", "full_attention", "full_attention",
     "full_attention"]})");
  EXPECT_TRUE(read_arch_spec(published, "config.json").layers[1].rotates);
  EXPECT_FALSE(read_arch_spec(published, "config.json").layers[2].rotates);
  const Json full = with(config, R"({"sliding_window": null, "sliding_window_pattern": null})");
  for (const LayerSpec& layer : read_arch_spec(full, "config.json").layers) {
    EXPECT_TRUE(layer.rotates);
    EXPECT_EQ(layer.window, 0);
  }
  expect_problem(with(config, R"({"sliding_window_pattern": "LLLG"})"), "'sliding_window_pattern'");
  expect_problem(with(config, R"({"sliding_window": 0})"), "'sliding_window'");
  expect_problem(with(published, R"({"sliding_window": null})"), "there is no sliding window");
}

// Cohere 2 scales logits, and its layers without a window have no positions.
TEST(SlidingFamilies, Cohere2ScalesLogitsAndRotatesWhereItSlides) {
  const Json config = with(llama(), R"({"model_type": "cohere2", "num_hidden_layers": 4,
    "use_parallel_block": true, "use_qk_norm": false})");
  const ArchSpec arch = read_arch_spec(config, "config.json");
  EXPECT_EQ(arch.logit_divisor, 16.0);
  EXPECT_EQ(arch.kv_heads, 4);
  // A number of key heads that is null is that of heads, also where an absent one is not.
  const Json null = with(llama(), R"({"model_type": "ernie4_5", "num_key_value_heads": null})");
  EXPECT_EQ(read_arch_spec(null, "config.json").kv_heads, 4);
  EXPECT_EQ(arch.norm_eps, 1e-5);
  EXPECT_TRUE(arch.tied_by_config);
  EXPECT_EQ(arch.layers[2].window, 4096);
  EXPECT_FALSE(arch.layers[3].rotates);
  const Json every = with(config, R"({"sliding_window_pattern": 2, "logit_scale": 0.25})");
  EXPECT_FALSE(read_arch_spec(every, "config.json").layers[1].rotates);
  EXPECT_EQ(read_arch_spec(every, "config.json").logit_divisor, 4.0);
  // Cohere 1 has neither windows nor layers without positions, and is refused with norms of heads.
  const Json first = with(config, R"({"model_type": "cohere"})");
  EXPECT_TRUE(read_arch_spec(first, "config.json").layers[3].rotates);
  EXPECT_EQ(read_arch_spec(first, "config.json").layers[0].window, 0);
  expect_problem(with(first, R"({"use_qk_norm": true})"), "'use_qk_norm'");
  expect_problem(with(config, R"({"use_parallel_block": false})"), "'use_parallel_block'");
  expect_problem(with(config, R"({"use_gated_activation": false})"), "'use_gated_activation'");
  expect_problem(with(config, R"({"use_qk_norm": true})"), "'use_qk_norm'");
  expect_problem(with(config, R"({"sliding_window": null, "layer_types": ["sliding_attention",
    "full_attention", "full_attention", "full_attention"]})"),
                 "there is no sliding window");
}

// Muse Glimmer exists inside its wrapper alone, which computes the cap of the logits.
TEST(SlidingFamilies, MuseGlimmerIsReadInsideItsWrapper) {
  const auto wrapped = [](const Json& text) {
    return Json{{"model_type", "muse_glimmer"}, {"text_config", text}};
  };
  const Json text = with(llama(), R"({"model_type": "muse_glimmer_text", "num_hidden_layers": 6,
    "num_key_value_heads": 2, "head_dim": 16})");
  const ArchSpec arch = read_arch_spec(wrapped(text), "config.json");
  EXPECT_EQ(arch.logit_cap, 20.0);
  EXPECT_DOUBLE_EQ(arch.logit_divisor, std::sqrt(26.0));
  EXPECT_DOUBLE_EQ(arch.layers[0].attention_scale, 3.87 / 4.0);
  EXPECT_EQ(arch.post_norm_eps, 1e-8);
  for (const size_t layer : {0, 1, 2, 3, 4, 5}) {
    const bool slides = layer != 1 && layer != 5;
    EXPECT_EQ(arch.layers[layer].rotates, slides) << layer;
    EXPECT_EQ(arch.layers[layer].window, slides ? 2048 : 0) << layer;
  }
  const Json listed = with(text, R"({"layer_rope_theta": [0, 5e5, 0, 0, 0, 5e5],
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})");
  EXPECT_TRUE(read_arch_spec(wrapped(listed), "config.json").layers[5].rotates);
  EXPECT_FALSE(read_arch_spec(wrapped(listed), "config.json").layers[0].rotates);
  for (const auto& [more, what] :
       {std::pair(R"({"layer_rope_theta": [0, 1e4, 0, 0, 0, 5e5]})", "'layer_rope_theta' differs"),
        std::pair(R"({"layer_rope_theta": [0]})", "has 1 entries for 6 layers"),
        std::pair(R"({"attention_bias": true})", "'attention_bias'"),
        std::pair(R"({"sliding_window": null})", "there is no sliding window")}) {
    expect_problem(wrapped(with(listed, more)), what);
  }
  EXPECT_NE(problems_of(text).at(0).find("'muse_glimmer_text' is not supported"),
            std::string::npos);
  EXPECT_EQ(supported_families().find("muse_glimmer_text"), std::string::npos);
}

}  // namespace
}  // namespace longshore
