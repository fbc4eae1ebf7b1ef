// AnswerText: the pieces of a growing text, and stop strings that begin and end within tokens.
#include "trainer/use/answer_text.h"

#include <gtest/gtest.h>

#include "text/tokenizer_trainer.h"

namespace longshore {
namespace {

// A tokenizer with a token for each byte.
Tokenizer bytes() {
  const TrainedTokenizer made = byte_tokenizer({});
  return Tokenizer::from_files(
      {.tokenizer = made.tokenizer_json, .tokenizer_config = made.tokenizer_config_json}, "made");
}

struct Grown {
  std::vector<std::string> pieces;
  std::string rest;
  AnswerText::Whole whole;
  size_t stopped_after = 0;  // tokens; 0: no stop string
};

// Gives the text token by token, until a stop string ends it.
Grown grow(const Tokenizer& tokenizer, const std::string& text,
           const std::vector<std::string>& stops) {
  const std::vector<TokenId> ids = tokenizer.encode(text, SpecialTokens::kNone);
  AnswerText answer(&tokenizer, stops);
  Grown grown;
  size_t count = 0;
  while (count < ids.size() && !answer.stopped()) {
    grown.pieces.push_back(answer.take(std::span(ids).first(++count)));
  }
  if (answer.stopped()) grown.stopped_after = count;
  grown.whole = answer.whole(std::span(ids).first(count));
  grown.rest = answer.rest(grown.whole);
  return grown;
}

using Pieces = std::vector<std::string>;

// Goal: pieces never end within a character, and together they are the whole text, also where it
// ends within a character.
TEST(AnswerText, GivesWholeCharactersOnce) {
  const Tokenizer tokenizer = bytes();
  const Grown whole = grow(tokenizer, "a\xC3\xA9\xE2\x82\xAC.", {});
  EXPECT_EQ(whole.pieces, (Pieces{"a", "", "\xC3\xA9", "", "", "\xE2\x82\xAC", "."}));
  EXPECT_EQ(whole.rest, "");
  EXPECT_EQ(whole.whole.text, "a\xC3\xA9\xE2\x82\xAC.");
  const std::vector<TokenId> ids = tokenizer.encode("a\xC3\xA9", SpecialTokens::kNone);
  AnswerText cut(&tokenizer, {});
  EXPECT_EQ(cut.take(std::span(ids).first(1)), "a");
  EXPECT_EQ(cut.take(std::span(ids).first(2)), "");
  EXPECT_EQ(cut.rest(cut.whole(std::span(ids).first(2))), "\xEF\xBF\xBD");
}

// Goal: the text ends before the first stop string, which tokens write piece by piece, and no part
// of it is printed.
TEST(AnswerText, EndsBeforeAStopString) {
  const Grown grown = grow(bytes(), "one\n\nUser: two\n\nUser:", {"\n\nUser:"});
  EXPECT_EQ(grown.stopped_after, std::string("one\n\nUser:").size());
  EXPECT_EQ(grown.whole.text, "one");
  EXPECT_TRUE(grown.whole.stopped);
  std::string printed;
  for (const std::string& piece : grown.pieces) printed += piece;
  EXPECT_EQ(printed + grown.rest, "one");
}

// Goal: what only looked like the beginning of a stop string is printed when that is clear, or at
// the end.
TEST(AnswerText, HoldsBackWhatMayBeAStopString) {
  const Grown grown = grow(bytes(), "a##b#", {"###"});
  EXPECT_EQ(grown.pieces, (Pieces{"a", "", "", "##b", ""}));
  EXPECT_EQ(grown.rest, "#");
  EXPECT_EQ(grown.stopped_after, 0u);
  EXPECT_FALSE(grown.whole.stopped);
}

// Goal: of several stop strings the one that begins first ends the text.
TEST(AnswerText, EndsBeforeTheFirstOfSeveralStopStrings) {
  EXPECT_EQ(grow(bytes(), "abcdef", {"ef", "cd"}).whole.text, "ab");
  EXPECT_EQ(grow(bytes(), "abcdef", {"bcd", "c"}).whole.text, "ab");
  EXPECT_EQ(grow(bytes(), "xyz", {"x"}).whole.text, "");
}

}  // namespace
}  // namespace longshore
