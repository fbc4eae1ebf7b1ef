#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "text/tokenizer_trainer.h"

namespace longshore {
namespace {

TEST(TokenizerTrainer, GivesATokenizerThatReturnsEveryText) {
  TokenizerTrainer trainer({.vocabulary_size = 300, .eos_token = "</s>"});
  trainer.add_document("the cat and the hat and the bat");
  const TrainedTokenizer trained = trainer.finish();
  const Tokenizer tokenizer = Tokenizer::from_files(
      {.tokenizer = trained.tokenizer_json, .tokenizer_config = trained.tokenizer_config_json},
      "memory");
  const std::string text = "the hat \xE2\x82\xAC\n";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, SpecialTokens::kAdd)), text);
}

}  // namespace
}  // namespace longshore
