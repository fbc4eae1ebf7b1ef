#include "text/tokenizer_trainer.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

Tokenizer load(const TrainedTokenizer& trained) {
  return Tokenizer::from_files(
      {.tokenizer = trained.tokenizer_json, .tokenizer_config = trained.tokenizer_config_json},
      "memory");
}

// A trained tokenizer decodes every text to itself.
TEST(TokenizerTrainer, GivesATokenizerThatReturnsEveryText) {
  TokenizerTrainer trainer({.vocabulary_size = 300, .eos_token = "</s>"});
  for (int i = 0; i < 3; ++i) trainer.add_document("the cat and the hat and the bat");
  const Tokenizer tokenizer = load(trainer.finish());
  EXPECT_GT(tokenizer.vocabulary_size(), 260);
  EXPECT_LE(tokenizer.vocabulary_size(), 300);
  EXPECT_EQ(tokenizer.id_limit(), tokenizer.vocabulary_size());
  const std::string text = "  the hat \xE2\x82\xAC\t\r\n\x7F the";
  const std::vector<TokenId> ids = tokenizer.encode(text, SpecialTokens::kAdd);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_LT(ids.size(), text.size());
}

// Without documents the tokenizer has the bytes and the special tokens.
TEST(TokenizerTrainer, MakesPlainBytesWithoutDocuments) {
  const Tokenizer tokenizer = load(
      byte_tokenizer({.bos_token = "<s>", .eos_token = "</s>", .other_special_tokens = {"<pad>"}}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 259);
  EXPECT_EQ(tokenizer.bos(), 0);
  EXPECT_EQ(tokenizer.eos(), 1);
  EXPECT_EQ(tokenizer.id_of("<pad>"), 2);
  EXPECT_EQ(tokenizer.stop_ids(), std::vector<TokenId>{1});
  const std::string text = "na\xC3\xAFve";
  EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kNone).size(), text.size());
}

// With bos_starts_text texts start with bos.
TEST(TokenizerTrainer, StartsTextsWithBosWhereTheRecipeSaysSo) {
  const Tokenizer tokenizer =
      load(byte_tokenizer({.bos_token = "<s>", .eos_token = "</s>", .bos_starts_text = true}));
  EXPECT_EQ(tokenizer.encode("a", SpecialTokens::kAdd).front(), tokenizer.bos());
  EXPECT_EQ(tokenizer.encode("a", SpecialTokens::kAdd).size(), 2u);
  EXPECT_EQ(tokenizer.encode("a", SpecialTokens::kNone).size(), 1u);
}

// Impossible recipes are refused.
TEST(TokenizerTrainer, RefusesRecipesThatCannotBeFollowed) {
  EXPECT_THROW(TokenizerTrainer({.vocabulary_size = 256}), ConfigError);
  EXPECT_THROW(TokenizerTrainer({.vocabulary_size = -1}), ConfigError);
  EXPECT_THROW(TokenizerTrainer({.vocabulary_size = int64_t{1} << 40}), ConfigError);
  EXPECT_THROW(TokenizerTrainer({.vocabulary_size = 300, .bos_starts_text = true}), ConfigError);
  EXPECT_THROW(TokenizerTrainer({.vocabulary_size = 300}).add_document("\xFF"), DataError);
}

}  // namespace
}  // namespace longshore
