// Long texts are encoded in pieces, with the tokens of the whole and in bounded memory.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "tests/data/scratch_files.h"
#include "tests/fakes/test_files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_trainer.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string golden_directory(const std::string& name) {
  return test_data() + "/text/golden/" + name;
}

// Returns texts of a golden file in random order, with blanks and line breaks between.
std::string long_text(const std::string& name, size_t bytes, uint32_t seed) {
  const Json golden = read_json_file(golden_directory(name) + "/golden.json", {});
  std::vector<std::string> texts;
  for (const Json& row : golden["rows"]) texts.push_back(row["text"].get<std::string>());
  const std::vector<std::string> between = {" ",    "\n", ".\n\n", ", ", "  ",
                                            "\r\n", "。", " 12 ",  "'s "};
  std::string text;
  for (uint32_t i = 0; text.size() < bytes; ++i) {
    const auto random = philox4x32({i, 0, 0, 0}, {.low = seed});
    text += texts[random[0] % texts.size()] + between[random[1] % between.size()];
  }
  return text;
}

// Cuts the text behind a letter and before a blank, into pieces short enough for one call.
std::vector<std::string> stretches_of(const std::string& text, size_t bytes) {
  std::vector<std::string> stretches;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(begin + bytes, text.size());
    while (end < text.size() && (text[end] != ' ' || std::isalpha(text[end - 1]) == 0)) ++end;
    stretches.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return stretches;
}

// Goal: pieces give the tokens and spans of the whole text, wherever it is cut.
TEST(TextInPieces, PiecesHaveTheTokensOfTheWhole) {
  for (const char* name : {"gpt2", "llama3", "word_piece", "unigram", "flags"}) {
    const Tokenizer tokenizer = Tokenizer::load(golden_directory(name));
    for (const uint32_t seed : {1U, 2U}) {
      const std::string text = long_text(name, 100'000, seed);
      std::vector<TokenId> expected;
      for (const std::string& stretch : stretches_of(text, size_t{40'000} + 7'000 * seed)) {
        ASSERT_LE(stretch.size(), size_t{64} << 10) << name;
        const std::vector<TokenId> ids = tokenizer.encode(stretch, SpecialTokens::kNone);
        expected.insert(expected.end(), ids.begin(), ids.end());
      }
      size_t pieces = 0;
      tokenizer.encode_pieces(text, SpecialTokens::kNone, [&](auto) { ++pieces; });
      EXPECT_GE(pieces, 2u) << name;
      ASSERT_EQ(tokenizer.encode(text, SpecialTokens::kNone), expected) << name << seed;
      const EncodedText spans = tokenizer.encode_with_spans(text, SpecialTokens::kNone);
      ASSERT_EQ(spans.ids, expected) << name << seed;
      for (size_t t = 1; t < spans.spans.size(); ++t) {
        ASSERT_LE(spans.spans[t - 1].begin, spans.spans[t].begin) << name << seed << " " << t;
        ASSERT_LE(spans.spans[t].end, text.size());
      }
    }
  }
}

// Goal: for a tokenizer that splits at blank lines only, as Gemma's does, the text is cut there,
// however many words lie between.
TEST(TextInPieces, AreCutWhereTheNextSplitIsFarAway) {
  Json file = read_json_file(golden_directory("gpt2") + "/tokenizer.json", {});
  file["pre_tokenizer"]["use_regex"] = false;
  Json blank_line = file["added_tokens"][0];
  blank_line["id"] = file["model"]["vocab"].size();
  blank_line["content"] = "\n\n";
  blank_line["special"] = false;
  file["added_tokens"].push_back(blank_line);
  const ScratchFiles files;
  const std::string path = files.write("tokenizer.json", file.dump());
  const Tokenizer tokenizer = Tokenizer::load(fs::path(path).parent_path().string());
  std::string text;
  std::vector<TokenId> expected;
  for (int paragraph = 0; paragraph < 8; ++paragraph) {
    std::string lines;
    while (lines.size() < 40'000) lines += "Line after line\nand no end.";
    for (const std::string& part : {lines, std::string("\n\n")}) {
      const std::vector<TokenId> ids = tokenizer.encode(part, SpecialTokens::kNone);
      expected.insert(expected.end(), ids.begin(), ids.end());
      text += part;
    }
  }
  size_t pieces = 0;
  tokenizer.encode_pieces(text, SpecialTokens::kNone, [&](auto) { ++pieces; });
  EXPECT_GE(pieces, 6u);
  EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kNone), expected);
}

// Goal: tokens of the post-processor are at the ends of the text, not of its pieces.
TEST(TextInPieces, SpecialTokensStandAtTheEndsOfTheText) {
  for (const char* name : {"llama3", "word_piece"}) {
    const Tokenizer tokenizer = Tokenizer::load(golden_directory(name));
    const std::string text = long_text(name, 80'000, 7);
    const std::vector<TokenId> plain = tokenizer.encode(text, SpecialTokens::kNone);
    const std::vector<TokenId> special = tokenizer.encode(text, SpecialTokens::kAdd);
    const auto found = std::search(special.begin(), special.end(), plain.begin(), plain.end());
    ASSERT_NE(found, special.end()) << name;
    const std::vector<TokenId> short_special = tokenizer.encode("word", SpecialTokens::kAdd);
    const std::vector<TokenId> short_plain = tokenizer.encode("word", SpecialTokens::kNone);
    EXPECT_EQ(special.size() - plain.size(), short_special.size() - short_plain.size()) << name;
    EXPECT_EQ(special.front() == plain.front(), short_special.front() == short_plain.front())
        << name;
    EXPECT_EQ(special.back() == plain.back(), short_special.back() == short_plain.back()) << name;
    EXPECT_EQ(tokenizer.encode_with_spans(text, SpecialTokens::kAdd).ids, special) << name;
  }
}

std::string refusal(const Tokenizer& tokenizer, const std::string& text) {
  try {
    tokenizer.encode(text, SpecialTokens::kNone);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

// Goal: a stretch without a safe cut is refused with the limit.
TEST(TextInPieces, ALongStretchWithoutAPlaceToCutIsRefused) {
  const Tokenizer gpt2 = Tokenizer::load(golden_directory("gpt2"));
  EXPECT_NE(refusal(gpt2, std::string(5'000'000, 'a')).find("at most 4 MiB are encoded at once"),
            std::string::npos);
  // The merges of this tokenizer cross words.
  const Tokenizer llama2 = Tokenizer::load(golden_directory("llama2"));
  std::string words;
  while (words.size() < 5'000'000) words += "some words ";
  EXPECT_NE(refusal(llama2, words).find("break the text into shorter documents"),
            std::string::npos);
  EXPECT_NE(refusal(gpt2, words + "\xFF").find("not UTF-8 at byte"), std::string::npos);
}

// The test is left out under sanitizers, which keep freed memory for a while.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  return 0;
}

// Goal: 8 MB of text in one document cost a few bytes of memory per byte, not 150.
TEST(TextInPieces, TakesAFewBytesForAByteOfText) {
  const Tokenizer tokenizer = Tokenizer::load(golden_directory("gpt2"));
  std::string text;
  while (text.size() < size_t{8} << 20) text += "It is a long way to the last page of this book. ";
  tokenizer.encode(text.substr(0, 100'000), SpecialTokens::kNone);
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // restarts the peak
  const int64_t before = peak_kib();
  size_t tokens = 0;
  tokenizer.encode_pieces(text, SpecialTokens::kNone, [&](auto ids) { tokens += ids.size(); });
  EXPECT_GT(tokens, text.size() / 6);
  EXPECT_LT(peak_kib() - before, 32 << 10);
}
#endif

// Goal: users of a tokenizer know how much longer its normalizer makes a text; marks for spaces are
// not counted.
TEST(TextInPieces, OfANormalizerThatLengthensThemCountAsLong) {
  for (const char* name : {"gpt2", "llama2"}) {
    EXPECT_EQ(Tokenizer::load(golden_directory(name)).growth(), 1u) << name;
  }
  const std::string from = R"("normalizer":null)";
  std::string file = read_whole_file(golden_directory("gpt2") + "/tokenizer.json", kGiB);
  file.replace(file.find(from), from.size(),
               R"("normalizer":{"type":"Replace","pattern":{"String":"a"},"content":")" +
                   std::string(1024, 'x') + "\"}");
  EXPECT_EQ(Tokenizer::from_files({.tokenizer = file}, "model").growth(), 1024u);
}

// Goal: a tokenizer is trained from one long document as from its parts, in bounded memory.
TEST(TextInPieces, TheTrainerTakesLongDocumentsAndRefusesEndlessWords) {
  const TokenizerRecipe recipe{.vocabulary_size = 400};
  const std::string text = long_text("gpt2", 300'000, 5);
  TokenizerTrainer whole(recipe), parts(recipe);
  whole.add_document(text);
  for (const std::string& stretch : stretches_of(text, 10'000)) parts.add_document(stretch);
  EXPECT_EQ(whole.finish().tokenizer_json, parts.finish().tokenizer_json);
  TokenizerTrainer trainer(recipe);
  EXPECT_THROW(trainer.add_document(std::string(20'000'000, 'a')), DataError);
  EXPECT_THROW(trainer.add_document(std::string(1'000'000, 'a')), DataError);
}

}  // namespace
}  // namespace longshore
