// Adapters of other shapes: ranks and alphas of single matrices (PEFT's rank_pattern and
// alpha_pattern), and targets in some layers or by regular expressions.
#include "model/parameters/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

ArchSpec llama() {
  const Json config = {{"model_type", "llama"},    {"vocab_size", 32},
                       {"hidden_size", 16},        {"intermediate_size", 24},
                       {"num_hidden_layers", 12},  {"num_attention_heads", 4},
                       {"num_key_value_heads", 2}, {"max_position_embeddings", 64},
                       {"rms_norm_eps", 1e-5},     {"hidden_act", "silu"},
                       {"eos_token_id", 1}};
  return read_arch_spec(config, "config.json");
}

AdapterChoice choice_of(std::vector<PatternNumber> ranks, std::vector<PatternNumber> alphas = {}) {
  return {.rank = 4,
          .alpha = 8.0,
          .ranks = std::move(ranks),
          .alphas = std::move(alphas),
          .targets = {"q_proj", "down_proj"}};
}

AdapterSpec choose(const AdapterChoice& choice) {
  return choose_adapters(llama(), choice, "adapter.targets");
}

int64_t rank_of(const AdapterSpec& adapter, int64_t layer, Module module) {
  return adapter.size_of(layer, module).rank;
}

// Each matrix has the rank and alpha of the first pattern that matches its name, and is scaled by
// its own alpha / rank, or alpha / sqrt(rank).
TEST(AdapterSizes, AreThoseOfTheFirstPatternThatMatches) {
  const AdapterSpec adapter =
      choose(choice_of({{"layers.1.self_attn.q_proj", 2}, {"q_proj", 8}},
                       {{"layers\\.1\\d?\\.mlp\\..*", 6}, {"^model.layers.0.mlp.down_proj", 1}}));
  EXPECT_EQ(rank_of(adapter, 0, Module::kQuery), 8);
  EXPECT_EQ(rank_of(adapter, 1, Module::kQuery), 2);
  EXPECT_EQ(rank_of(adapter, 11, Module::kQuery), 8);
  EXPECT_EQ(rank_of(adapter, 1, Module::kDown), 4);
  EXPECT_EQ(adapter.size_of(0, Module::kQuery).scaling, 1.0);
  EXPECT_EQ(adapter.size_of(1, Module::kQuery).scaling, 4.0);
  EXPECT_EQ(adapter.size_of(0, Module::kDown).scaling, 0.25);
  EXPECT_EQ(adapter.size_of(1, Module::kDown).scaling, 1.5);
  EXPECT_EQ(adapter.size_of(2, Module::kDown).scaling, 2.0);
  EXPECT_EQ(adapter.size_of(11, Module::kDown).scaling, 1.5);

  AdapterChoice root = choice_of({{"q_proj", 16}}, {{"q_proj", 32}});
  root.rslora = true;
  EXPECT_EQ(choose(root).size_of(3, Module::kQuery).scaling, 8.0);
  EXPECT_EQ(choose(root).size_of(3, Module::kDown).scaling, 4.0);
}

// The parameters of a unit have the shapes of their own ranks.
TEST(AdapterSizes, AreTheShapesOfParameters) {
  ArchSpec arch = llama();
  arch.adapter = choose(choice_of({{"layers.1.self_attn.q_proj", 2}}));
  const ModelSpec model = make_model_spec(arch, {});
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParamSpec& parameter : model.whole_parameters()) {
    shapes[parameter.name] = parameter.shape;
  }
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.q_proj.lora_A.weight"), (Shape{4, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_proj.lora_A.weight"), (Shape{2, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_proj.lora_B.weight"), (Shape{16, 2}));
}

// Goal: an export has patterns that do not depend on their order, because PEFT sorts them: the last
// part of names where all targets agree, otherwise whole names.
TEST(AdapterSizes, AreExportedByNamesThatExcludeEachOther) {
  ArchSpec arch = llama();
  arch.adapter =
      choose(choice_of({{"layers.1.self_attn.q_proj", 2}, {".*down.*", 16}}, {{"q_proj", 3}}));
  const auto rank = [](const AdapterSpec::Size& size) { return static_cast<double>(size.rank); };
  EXPECT_EQ(
      number_patterns(arch, 4.0, rank),
      (std::vector<PatternNumber>{{"down_proj", 16}, {"model.layers.1.self_attn.q_proj", 2}}));
  const auto alpha = [](const AdapterSpec::Size& size) { return size.alpha; };
  EXPECT_EQ(number_patterns(arch, 8.0, alpha), (std::vector<PatternNumber>{{"q_proj", 3}}));
}

// A pattern that would change nothing is a mistake in a run file; PEFT only warns of those that it
// wrote into a file.
TEST(AdapterSizes, OfPatternsThatMatchNothingAreRefused) {
  AdapterChoice choice = choice_of({{"v_proj", 2}});
  EXPECT_THROW(choose(choice), ConfigError);
  choice.spare_patterns = true;
  EXPECT_EQ(rank_of(choose(choice), 0, Module::kQuery), 4);
  EXPECT_THROW(choose(choice_of({}, {{"(?i)q_proj", 2}})), ConfigError);
}

// Returns the model of a golden case's base.
ArchSpec golden_base(const std::string& name) {
  const std::string path = test_data() + "/parity/golden/" + name + "/config.json";
  return read_arch_spec(read_json_file(path, JsonLimits{}), path);
}

// Goal: layers, excluded names and regular expressions choose the modules that PEFT chose
// (targeted_module_names of the golden cases).
TEST(AdapterTargets, InLayersAndByRegularExpressionsAreThoseOfPeft) {
  const std::map<std::string, AdapterChoice> choices = {
      {"llama-layers",
       {.targets = {"q_proj", "v_proj", "down_proj"}, .excluded = {"v_proj"}, .layers = {1}}},
      {"llama-regex",
       {.targets = {R"(re:model\.layers\.\d+\.(self_attn\.(q|k)_proj|mlp\.(?!up).+_proj))"},
        .excluded = {R"(re:.*\.0\.mlp\..*)"}}}};
  for (const auto& [name, choice] : choices) {
    ArchSpec arch = golden_base("llama");
    arch.adapter = choose_adapters(arch, choice, "adapter.targets");
    std::vector<std::string> modules;
    for (const ParamSpec& parameter : make_model_spec(arch, {}).whole_parameters()) {
      const std::string end = ".lora_A.weight";
      if (!parameter.name.ends_with(end)) continue;
      modules.push_back(parameter.name.substr(0, parameter.name.size() - end.size()));
    }
    std::ranges::sort(modules);
    const Json facts = read_json_file(
        test_data() + "/parity/golden_adapter/" + name + "/golden.json", JsonLimits{});
    EXPECT_EQ(Json(modules), facts.at("adapter").at("target_modules")) << name;
  }
}

// Goal: a regular expression is matched with names of transformers alone, as by PEFT; the files of
// gpt2 may have shorter ones.
TEST(AdapterTargets, ByRegularExpressionsHaveTheirNamesInTransformers) {
  const ArchSpec arch = golden_base("gpt2");
  const AdapterChoice longer{.targets = {R"(re:transformer\.h\.\d+\.attn\.c_attn)"}};
  EXPECT_FALSE(choose_adapters(arch, longer, "").targets.empty());
  const AdapterChoice shorter{.targets = {R"(re:h\.\d+\.attn\.c_attn)"}};
  EXPECT_THROW(choose_adapters(arch, shorter, ""), ConfigError);
  const AdapterChoice none{.targets = {R"(re:(?!transformer).*c_attn)"}};
  EXPECT_THROW(choose_adapters(arch, none, ""), ConfigError);
}

// A choice that leaves out nothing, everything or a layer that the model lacks is a mistake.
TEST(AdapterTargets, LeftOutInVainAreRefused) {
  AdapterChoice choice{.targets = {"q_proj"}};
  choice.excluded = {"v_proj"};
  EXPECT_THROW(choose(choice), ConfigError);
  choice.excluded = {"q_proj"};
  EXPECT_THROW(choose(choice), ConfigError);
  choice.excluded = {"re:(?i).*"};
  EXPECT_THROW(choose(choice), ConfigError);
  choice.excluded = {};
  choice.layers = {12};
  EXPECT_THROW(choose(choice), ConfigError);
  choice.layers = {11};
  EXPECT_EQ(choose(choice).targets.size(), 1u);
  choice.targets = {"embed_tokens"};
  EXPECT_THROW(choose(choice), ConfigError);
  choice.targets = {"re:q_proj"};
  EXPECT_THROW(choose(choice), ConfigError);
}

}  // namespace
}  // namespace longshore
