#include "trainer/commands/new_tokenizer.h"

#include "data/sources/row_source.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

}  // namespace

TrainedTokenizer make_tokenizer(const std::vector<std::string>& files, int64_t vocabulary) {
  TokenizerRecipe recipe;
  recipe.vocabulary_size = vocabulary;
  recipe.eos_token = kEndOfText;
  if (files.empty()) return byte_tokenizer(recipe);
  TokenizerTrainer trainer(recipe);
  for_each_text(files, [&trainer](std::string_view text) { trainer.add_document(text); });
  return trainer.finish();
}

int64_t id_limit_of(const TrainedTokenizer& tokenizer) {
  TokenizerFiles files;
  files.tokenizer = tokenizer.tokenizer_json;
  files.tokenizer_config = tokenizer.tokenizer_config_json;
  return Tokenizer::from_files(files, "the new tokenizer").id_limit();
}

}  // namespace longshore
