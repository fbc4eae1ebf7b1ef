#include "text/tokenizer_trainer.h"

#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "text/tokenizers_c_strings.h"

namespace longshore {
namespace {

std::vector<std::string> special_tokens_of(const TokenizerRecipe& recipe) {
  std::vector<std::string> tokens;
  for (const std::string& token : {recipe.bos_token, recipe.eos_token}) {
    if (!token.empty()) tokens.push_back(token);
  }
  tokens.insert(tokens.end(), recipe.other_special_tokens.begin(),
                recipe.other_special_tokens.end());
  return tokens;
}

std::string config_of(const TokenizerRecipe& recipe) {
  Json config = Json::object();
  if (!recipe.bos_token.empty()) config["bos_token"] = recipe.bos_token;
  if (!recipe.eos_token.empty()) config["eos_token"] = recipe.eos_token;
  if (!recipe.other_special_tokens.empty()) {
    config["extra_special_tokens"] = recipe.other_special_tokens;
  }
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

}  // namespace

void TokenizerTrainer::Free::operator()(tokc_trainer* trainer) const noexcept {
  tokc_trainer_free(trainer);
}

TokenizerTrainer::TokenizerTrainer(TokenizerTrainer&&) noexcept = default;
TokenizerTrainer& TokenizerTrainer::operator=(TokenizerTrainer&&) noexcept = default;
TokenizerTrainer::~TokenizerTrainer() = default;

TokenizerTrainer::TokenizerTrainer(TokenizerRecipe recipe) : recipe_(std::move(recipe)) {
  if (recipe_.vocabulary_size < 0 || recipe_.min_frequency < 0) {
    throw ConfigError("tokenizer: vocabulary size and lowest frequency must not be negative");
  }
  if (recipe_.bos_starts_text && recipe_.bos_token.empty()) {
    throw ConfigError("tokenizer: a text can start with bos only where there is a bos token");
  }
  const std::vector<std::string> tokens = special_tokens_of(recipe_);
  std::vector<tokc_slice> slices;
  for (const std::string& token : tokens) slices.push_back(slice_of(token));
  tokc_trainer* handle = nullptr;
  tokc_string error{};
  if (tokc_trainer_new(static_cast<size_t>(recipe_.vocabulary_size),
                       static_cast<uint64_t>(recipe_.min_frequency), slices.data(), slices.size(),
                       &handle, &error) != 0) {
    throw ConfigError("tokenizer: " + take(error));
  }
  handle_.reset(handle);
}

void TokenizerTrainer::add_document(std::string_view text) {
  tokc_string error{};
  if (tokc_trainer_feed(handle_.get(), slice_of(text), &error) != 0) {
    throw DataError("tokenizer: cannot learn from a document of " + std::to_string(text.size()) +
                    " bytes: " + take(error));
  }
}

TrainedTokenizer TokenizerTrainer::finish() {
  const std::string prefix = recipe_.bos_starts_text ? recipe_.bos_token : std::string();
  tokc_string json{}, error{};
  if (tokc_trainer_finish(handle_.get(), slice_of(prefix), &json, &error) != 0) {
    throw ConfigError("tokenizer: " + take(error));
  }
  return {take(json) + "\n", config_of(recipe_)};
}

TrainedTokenizer byte_tokenizer(TokenizerRecipe recipe) {
  recipe.vocabulary_size = 256 + static_cast<int64_t>(special_tokens_of(recipe).size());
  return TokenizerTrainer(std::move(recipe)).finish();
}

}  // namespace longshore
