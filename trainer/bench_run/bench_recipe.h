// BenchRecipe: one of the fixed runs of `longshore bench run`, from config/bench, with the shapes
// of its model and the rows that it trains on. Plain values; the functions that write files throw
// IoError. Main thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/texts.h"
#include "trainer/setup/run_file_draft.h"

namespace longshore {

struct BenchRecipe {
  std::string name;            // "8b-qlora"
  std::string summary;         // what is trained, in one line
  std::string model;           // hub id of the model whose shapes it has
  std::vector<DraftKey> keys;  // of the run file, without model.path

  // Returns the value of a key as TOML; empty if the recipe does not set it.
  std::string value(std::string_view key) const;
  // Returns whether the base stays in its files, so that a directory with them is needed.
  bool reads_files() const { return value("offload.parameters") == "\"files\""; }
  // Returns whether drives may hold what the host has no room for.
  bool may_use_drives() const;
};

// Return the files of config/bench, and the config.json of the models of config/recipes/models.
std::span<const NamedText> bench_run_files();
std::span<const NamedText> recipe_models();

// Returns all recipes, ordered by name.
const std::vector<BenchRecipe>& bench_recipes();
// Throws ConfigError for an unknown name, with the nearest one and all names.
const BenchRecipe& find_bench_recipe(const std::string& name);

// Returns the config.json of the recipe's shapes, or of tiny shapes of the same family.
std::string bench_model_config(const BenchRecipe& recipe, bool tiny);
// Returns config.json with the first block alone and a small vocabulary; packed weights become
// plain ones.
std::string one_block_config(const std::string& config);

// RandomTokens: token ids of a fixed seed. The same arguments give the same ids on every machine.
std::vector<int64_t> random_tokens(int64_t vocabulary, int64_t count, uint64_t row);
// Writes JSONL with `rows` rows of `tokens` random token ids.
void write_random_rows(const std::string& path, int64_t vocabulary, int64_t rows, int64_t tokens);

}  // namespace longshore
