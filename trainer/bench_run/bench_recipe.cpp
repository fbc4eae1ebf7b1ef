#include "trainer/bench_run/bench_recipe.h"

#include <algorithm>
#include <cctype>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "model/families/families.h"
#include "model/families/random_init.h"

namespace longshore {
namespace {

constexpr int64_t kTinyVocabulary = 512;
constexpr int64_t kBlockVocabulary = 1024;

BenchRecipe read_recipe(const NamedText& file) {
  BenchRecipe recipe{.name = std::string(file.name), .summary = {}, .model = {}, .keys = {}};
  const std::string_view text = file.text;
  const size_t end = text.find(".\n");
  LONGSHORE_CHECK(text.starts_with("# ") && end != std::string_view::npos) << recipe.name;
  recipe.summary = text.substr(2, end - 2);
  for (DraftKey& key : keys_of_run_file(text, recipe.name)) {
    if (key.full_name() == "model.path") {
      recipe.model = key.value.substr(1, key.value.size() - 2);
    } else {
      recipe.keys.push_back(std::move(key));
    }
  }
  return recipe;
}

// Returns the folder of config/recipes/models: "qwen3-8b" of "Qwen/Qwen3-8B".
std::string shapes_name(const BenchRecipe& recipe) {
  std::string name = recipe.model.substr(recipe.model.find('/') + 1);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

// Returns the first preset of the family, its smallest.
std::string tiny_preset(const std::string& family) {
  const NamedText* const presets = find_text(family_presets(), family);
  LONGSHORE_CHECK(presets != nullptr) << family;
  return Json::parse(presets->text).begin().key();
}

}  // namespace

std::string BenchRecipe::value(std::string_view key) const {
  const auto found = std::ranges::find(keys, key, &DraftKey::full_name);
  return found == keys.end() ? "" : found->value;
}

bool BenchRecipe::may_use_drives() const {
  const std::string base = value("adapter.base");
  return !reads_files() && (base.empty() || base == "\"published\"");
}

const std::vector<BenchRecipe>& bench_recipes() {
  static const std::vector<BenchRecipe> recipes = [] {
    std::vector<BenchRecipe> read;
    for (const NamedText& file : bench_run_files()) read.push_back(read_recipe(file));
    return read;
  }();
  return recipes;
}

const BenchRecipe& find_bench_recipe(const std::string& name) {
  const std::vector<BenchRecipe>& recipes = bench_recipes();
  const auto found = std::ranges::find(recipes, name, &BenchRecipe::name);
  if (found != recipes.end()) return *found;
  std::vector<std::string> names;
  for (const BenchRecipe& recipe : recipes) names.push_back(recipe.name);
  const std::string nearest = nearest_name(name, names);
  throw ConfigError("bench run: " + (name.empty() ? "no recipe is named" : "no recipe " + name) +
                    (nearest.empty() ? "; the" : "; did you mean " + nearest + "? The") +
                    " recipes are " + joined(names, ", ") + "; --list shows what they need");
}

std::string bench_model_config(const BenchRecipe& recipe, bool tiny) {
  const NamedText* const shapes = find_text(recipe_models(), shapes_name(recipe));
  LONGSHORE_CHECK(shapes != nullptr) << recipe.model;
  if (!tiny) return std::string(shapes->text);
  const std::string family = Json::parse(shapes->text).at("model_type").get<std::string>();
  return init_preset_config(tiny_preset(family), {.vocabulary = kTinyVocabulary, .eos_token = 0});
}

std::string one_block_config(const std::string& config) {
  Json json = parse_json(config, JsonLimits{}, "config.json");
  json["num_hidden_layers"] = 1;
  json["vocab_size"] = std::min(kBlockVocabulary, json.at("vocab_size").get<int64_t>());
  if (json.contains("layer_types"))
    json["layer_types"] = Json::array({json.at("layer_types").at(0)});
  for (const char* const key :
       {"quantization_config", "bos_token_id", "eos_token_id", "pad_token_id"}) {
    json.erase(key);
  }
  return json_text(json, 2) + "\n";
}

std::vector<int64_t> random_tokens(int64_t vocabulary, int64_t count, uint64_t row) {
  constexpr PhiloxKey kSeed = {42, 0};
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto words =
        philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(row), 0, 0}, kSeed);
    tokens[i] = static_cast<int64_t>(words[0] % static_cast<uint64_t>(vocabulary));
  }
  return tokens;
}

void write_random_rows(const std::string& path, int64_t vocabulary, int64_t rows, int64_t tokens) {
  std::string text;
  for (int64_t row = 0; row < rows; ++row) {
    text += "{\"input_ids\": [";
    const std::vector<int64_t> ids = random_tokens(vocabulary, tokens, static_cast<uint64_t>(row));
    text += joined(ids, ", ", [](int64_t id) { return std::to_string(id); }) + "]}\n";
  }
  write_file_durably(path, text);
}

}  // namespace longshore
