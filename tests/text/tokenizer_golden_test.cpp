// Files and texts give the results of transformers, which make_goldens.py recorded.
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/test_files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_trainer.h"

namespace longshore {
namespace {

std::string golden_directory(const std::string& name) {
  return test_data() + "/text/golden/" + name;
}

std::vector<TokenId> ids_of(const Json& array) {
  return array.get<std::vector<TokenId>>();
}

std::optional<TokenId> optional_id(const Json& value) {
  if (value.is_null()) return std::nullopt;
  return value.get<TokenId>();
}

std::vector<std::vector<size_t>> spans_of(const EncodedText& encoded) {
  std::vector<std::vector<size_t>> spans;
  for (const TextSpan& span : encoded.spans) spans.push_back({span.begin, span.end});
  return spans;
}

void expect_row(const Tokenizer& tokenizer, const Json& row, const std::string& name) {
  const std::string& text = row["text"].get_ref<const std::string&>();
  const std::vector<TokenId> special = ids_of(row["special"]);
  ASSERT_EQ(tokenizer.encode(text, SpecialTokens::kNone), ids_of(row["ids"])) << name << text;
  ASSERT_EQ(tokenizer.encode(text, SpecialTokens::kAdd), special) << name << text;
  EXPECT_EQ(tokenizer.decode(special, true), row["decoded"].get<std::string>()) << name << text;
  EXPECT_EQ(tokenizer.decode(special, false), row["decoded_all"].get<std::string>())
      << name << text;
  const EncodedText encoded = tokenizer.encode_with_spans(text, SpecialTokens::kNone);
  ASSERT_EQ(encoded.ids, ids_of(row["ids"])) << name << text;
  if (row.contains("spans")) {
    EXPECT_EQ(spans_of(encoded), row["spans"].get<std::vector<std::vector<size_t>>>())
        << name << text;
  }
}

// Encoding and decoding agree with transformers.
TEST(TokenizerGolden, EncodesAndDecodesAsTransformersDoes) {
  for (const char* name : {"gpt2", "llama3", "llama2", "llama2_legacy", "unigram", "word_piece",
                           "flags", "special_map"}) {
    const std::string directory = golden_directory(name);
    const Tokenizer tokenizer = Tokenizer::load(directory);
    const Json golden = read_json_file(directory + "/golden.json", {});
    EXPECT_EQ(tokenizer.vocabulary_size(), golden["vocabulary_size"].get<int64_t>()) << name;
    EXPECT_EQ(tokenizer.bos(), optional_id(golden["bos"])) << name;
    EXPECT_EQ(tokenizer.eos(), optional_id(golden["eos"])) << name;
    EXPECT_EQ(tokenizer.pad(), optional_id(golden["pad"])) << name;
    ASSERT_GE(golden["rows"].size(), 30u);
    for (const Json& row : golden["rows"]) expect_row(tokenizer, row, std::string(name) + ": ");
  }
}

// Training gives the merges of the Python package in the same order, with any number of threads.
TEST(TokenizerGolden, LearnsTheTokenizerThatThePythonPackageLearns) {
  const std::string directory = golden_directory("learned");
  TokenizerTrainer trainer({.vocabulary_size = 400,
                            .min_frequency = 2,
                            .bos_token = "<s>",
                            .eos_token = "</s>",
                            .bos_starts_text = true});
  for (const Json& document : read_json_file(directory + "/corpus.json", {})) {
    trainer.add_document(document.get<std::string>());
  }
  Json ours = parse_json(trainer.finish().tokenizer_json, {}, "ours");
  Json theirs = read_json_file(directory + "/tokenizer.json", {});
  EXPECT_EQ(ours["model"].dump(), theirs["model"].dump());
  // The second half of a pair of texts is never used.
  ours["post_processor"].erase("pair");
  theirs["post_processor"].erase("pair");
  EXPECT_EQ(ours.dump(), theirs.dump());
}

}  // namespace
}  // namespace longshore
