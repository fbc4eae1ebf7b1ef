// The matrices that parameters of the families hold, for update rules that need them whole.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/parameters/adapter.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

ArchSpec arch_of(const std::string& preset) {
  const std::string text = init_preset_config(preset, {.vocabulary = 97, .eos_token = 3});
  return read_arch_spec(Json::parse(text), preset);
}

ModelSpec spec_of(const std::string& preset) {
  return make_model_spec(arch_of(preset), {});
}

// Returns the matrices' sizes, [outputs, inputs], of the first parameter whose name has the part.
std::vector<std::pair<int64_t, int64_t>> sizes_in(const ModelSpec& spec, const std::string& part) {
  std::vector<std::pair<int64_t, int64_t>> sizes;
  for (const ParamSpec& parameter : spec.whole_parameters()) {
    if (parameter.name.find(part) == std::string::npos || parameter.shape.size() < 2) continue;
    for (const MatrixPlace& place : parameter.matrix_places()) {
      sizes.emplace_back(place.rows, place.columns);
    }
    break;
  }
  return sizes;
}

// In all families the matrices of a parameter have each of its elements once; tables have none.
TEST(ParameterMatrices, HaveEachElementOnce) {
  for (const InitPreset& preset : init_presets()) {
    if (!preset.name.starts_with("tiny-")) continue;
    const ModelSpec spec = spec_of(preset.name);
    const ParamSpec& table = spec.units.front().parameters.front();
    EXPECT_TRUE(table.matrix_places().empty()) << preset.name;
    for (const ParamSpec& parameter : spec.whole_parameters()) {
      const std::vector<MatrixPlace> places = parameter.matrix_places();
      if (places.empty()) continue;
      std::vector<bool> seen(static_cast<size_t>(parameter.elements()));
      int64_t elements = 0;
      for (const MatrixPlace& place : places) {
        for (int64_t row = 0; row < place.rows; ++row) {
          for (int64_t column = 0; column < place.columns; ++column) {
            const auto element = static_cast<size_t>(place.element(row, column));
            ASSERT_LT(element, seen.size()) << preset.name << " " << parameter.name;
            ASSERT_FALSE(seen[element]) << preset.name << " " << parameter.name;
            seen[element] = true;
          }
        }
        elements += place.elements();
      }
      EXPECT_EQ(elements, parameter.elements()) << preset.name << " " << parameter.name;
    }
  }
}

// Fused and stacked parameters are several matrices: those of GPT-2 lie in columns.
TEST(ParameterMatrices, FusedAndStackedParametersHoldSeveral) {
  const ModelSpec phi = spec_of("tiny-phi3"), gpt2 = spec_of("tiny-gpt2"),
                  gpt_oss = spec_of("tiny-gpt-oss");
  EXPECT_EQ(sizes_in(phi, "qkv_proj").size(), 3u);
  EXPECT_EQ(sizes_in(phi, "gate_up_proj").size(), 2u);
  EXPECT_EQ(sizes_in(phi, "lm_head").size(), 0u);
  const auto attention = sizes_in(gpt2, "c_attn.weight");
  ASSERT_EQ(attention.size(), 3u);
  EXPECT_EQ(attention[0], attention[2]);
  EXPECT_EQ(attention[0].first, attention[0].second);
  const auto experts = sizes_in(gpt_oss, "experts.gate_up_proj");
  const auto down = sizes_in(gpt_oss, "experts.down_proj");
  ASSERT_EQ(experts.size(), 2 * down.size());
  EXPECT_EQ(experts.front().first, down.front().second);
  EXPECT_EQ(experts.front().second, down.front().first);
}

// B of an adapter holds as many matrices as the parameter that it adapts, none of a table; A is
// one.
TEST(ParameterMatrices, AdaptersOfFusedParametersHoldSeveral) {
  const auto adapted = [](const std::string& preset, std::vector<std::string> targets) {
    ArchSpec arch = arch_of(preset);
    arch.adapter = choose_adapters(arch, {.rank = 4, .targets = std::move(targets)}, preset);
    return make_model_spec(arch, {});
  };
  const ModelSpec phi = adapted("tiny-phi3", {"all-linear"});
  const ModelSpec moe = adapted("tiny-qwen3-moe", {"mlp"});
  EXPECT_EQ(sizes_in(phi, "qkv_proj.lora_A").size(), 1u);
  const auto qkv = sizes_in(phi, "qkv_proj.lora_B"), whole = sizes_in(phi, "qkv_proj.weight");
  ASSERT_EQ(qkv.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(qkv[i].first, whole[i].first);
    EXPECT_EQ(qkv[i].second, 4);
  }
  const size_t experts = sizes_in(moe, "experts.base_layer.lora_A").size();
  EXPECT_GT(experts, 1u);
  EXPECT_EQ(sizes_in(moe, "experts.base_layer.lora_B").size(), 2 * experts);
  EXPECT_EQ(sizes_in(moe, "experts.lora_B").size(), experts);
  const ModelSpec head = adapted("tiny-phi3", {"lm_head"});
  EXPECT_EQ(sizes_in(head, "lm_head.lora_A").size(), 1u);
  EXPECT_EQ(sizes_in(head, "lm_head.lora_B").size(), 0u);
}

}  // namespace
}  // namespace longshore
