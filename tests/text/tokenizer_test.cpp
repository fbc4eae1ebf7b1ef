#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <algorithm>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/errors.h"
#include "base/file.h"
#include "base/random.h"
#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

std::string golden_directory(const std::string& name) {
  return test_data() + "/text/golden/" + name;
}

std::string golden_json(const std::string& name) {
  return read_whole_file(golden_directory(name) + "/tokenizer.json", kMiB);
}

// Returns the golden file with one piece of it replaced.
std::string changed(const std::string& name, const std::string& from, const std::string& to) {
  std::string text = golden_json(name);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& json, const std::string& config = "") {
  try {
    Tokenizer::from_files({.tokenizer = json, .tokenizer_config = config}, "model");
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

struct Hostile {
  const char* what;
  std::string json;
  std::string message;
};

std::vector<Hostile> hostile_files() {
  const std::string deep(40, '['), deep_end(40, ']');
  const std::string replace =
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaa\"},";
  std::string bomb = "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[";
  for (int i = 0; i < 40; ++i) bomb += replace;
  bomb.back() = ']';
  bomb += '}';
  return {
      {"empty", "", "model/tokenizer.json: "},
      {"cut off", golden_json("gpt2").substr(0, 2000), "model/tokenizer.json: "},
      {"no object", "[1, 2]", "model/tokenizer.json: "},
      {"not UTF-8", changed("gpt2", "\"!\"", "\"\xFF\""), "model/tokenizer.json: "},
      {"deep", changed("gpt2", "\"normalizer\":null", "\"normalizer\":" + deep + deep_end),
       "model/tokenizer.json: nested deeper than 32 levels"},
      {"version", changed("gpt2", "\"1.0\"", "\"9.0\""),
       "model/tokenizer.json: Unknown tokenizer version '9.0'"},
      {"kind", changed("gpt2", "\"BPE\"", "\"XYZ\""), "model/tokenizer.json: "},
      {"negative id", changed("gpt2", "\"!\":2", "\"!\":-2"), "model/tokenizer.json: "},
      {"wide id", changed("gpt2", "\"!\":2", "\"!\":4294967296"), "model/tokenizer.json: "},
      {"large id", changed("gpt2", "\"!\":2", "\"!\":4294967290"),
       "model/tokenizer.json: token id 4294967290 is too large"},
      {"no vocabulary",
       "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{},"
       "\"merges\":[]}}",
       "model/tokenizer.json: the vocabulary is empty"},
      {"unknown merge", changed("gpt2", "\"merges\":[", "\"merges\":[[\"qq\",\"zz\"],"),
       "model/tokenizer.json: "},
      {"bad pattern", changed("llama3", "\"Regex\":\"", "\"Regex\":\"(((("),
       "model/tokenizer.json: "},
      {"bomb", changed("gpt2", "\"normalizer\":null", bomb),
       "model/tokenizer.json: its replacements can make a text 4096 times longer"},
      {"random", changed("gpt2", "\"dropout\":null", "\"dropout\":0.1"),
       "model/tokenizer.json: model.dropout is set"},
  };
}

// Hostile tokenizer files are refused with the file's name.
TEST(Tokenizer, RefusesHostileFilesByName) {
  for (const Hostile& hostile : hostile_files()) {
    const std::string text = refusal(hostile.json);
    EXPECT_EQ(text.find(hostile.message), 0u) << hostile.what << ": " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

// Goal: a text that a chain of replacements would make too long is refused before it is made.
TEST(Tokenizer, RefusesTextsThatReplacementsMakeTooLong) {
  const std::string grows =
      R"({"type":"Replace","pattern":{"String":"a"},"content":")" + std::string(64, 'a') + "\"}";
  const std::string chain =
      R"("normalizer":{"type":"Sequence","normalizers":[)" + grows + "," + grows + "]}";
  const Tokenizer tokenizer =
      Tokenizer::from_files({.tokenizer = changed("gpt2", "\"normalizer\":null", chain)}, "model");
  EXPECT_FALSE(tokenizer.encode("a", SpecialTokens::kNone).empty());
  for (const size_t letters : {size_t{4097}, size_t{1'000'000}}) {
    EXPECT_THROW(tokenizer.encode(std::string(letters, 'a'), SpecialTokens::kNone), DataError);
    EXPECT_THROW(tokenizer.encode_with_spans(std::string(letters, 'a'), SpecialTokens::kNone),
                 DataError);
  }
}

// A clone without git lfs has a pointer in the tokenizer's place, which is named.
TEST(Tokenizer, NamesAPointerOfGitLfs) {
  const TemporaryDirectory directory;
  std::ofstream(directory.file("tokenizer.json"))
      << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  try {
    Tokenizer::load(directory.path());
    FAIL() << "it was read";
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()),
              directory.file("tokenizer.json") +
                  ": a Git LFS pointer, not the file itself; run git lfs "
                  "pull");
  }
}

// Hostile tokenizer configurations are refused.
TEST(Tokenizer, RefusesHostileConfigurations) {
  const std::string json = golden_json("gpt2");
  EXPECT_EQ(refusal(json, "{").find("model/tokenizer_config.json: "), 0u);
  EXPECT_EQ(refusal(json, "[]"), "model/tokenizer_config.json: not a JSON object");
  EXPECT_EQ(refusal(json, "{\"added_tokens_decoder\": 3}"),
            "model/tokenizer_config.json: added_tokens_decoder is not an object");
  EXPECT_EQ(refusal(json, "{\"added_tokens_decoder\": {\"x\": {\"content\": \"a\"}}}"),
            "model/tokenizer_config.json: added_tokens_decoder: bad id 'x'");
  EXPECT_EQ(refusal(json, "{\"added_tokens_decoder\": {\"1\": {}}}"),
            "model/tokenizer_config.json: a token object has no string 'content'");
  EXPECT_EQ(refusal(json,
                    "{\"added_tokens_decoder\": {\"1\": {\"content\": \"a\", "
                    "\"lstrip\": 1}}}"),
            "model/tokenizer_config.json: token flag 'lstrip' is not true or false");
}

// Padding and truncation of the file are ignored; its lengths would be allocated for every text.
TEST(Tokenizer, IgnoresPaddingAndTruncationOfTheFile) {
  const std::string padding =
      "\"padding\":{\"strategy\":{\"Fixed\":1000000000000},\"direction\":\"Right\","
      "\"pad_to_multiple_of\":null,\"pad_id\":0,\"pad_type_id\":0,\"pad_token\":\"<s>\"}";
  const Tokenizer tokenizer =
      Tokenizer::from_files({.tokenizer = changed("gpt2", "\"padding\":null", padding)}, "model");
  EXPECT_EQ(tokenizer.encode("a", SpecialTokens::kAdd).size(), 1u);
  EXPECT_EQ(tokenizer.pad(), tokenizer.id_of("<s>"));
}

// Random damage of a file is refused or harmless; no call crashes.
TEST(Tokenizer, SurvivesRandomDamage) {
  const std::string replacements = "\"{}[],:0e-\\nullx\xC3\x01";
  int loaded = 0;
  for (const char* name : {"gpt2", "llama3", "llama2", "unigram", "word_piece"}) {
    const std::string original = golden_json(name);
    for (uint32_t trial = 0; trial < 150; ++trial) {
      std::string json = original;
      for (uint32_t edit = 0; edit < 1 + trial % 3; ++edit) {
        const auto random = philox4x32({trial, edit, 0, 0}, {11, 0});
        const size_t at = random[0] % json.size();
        if (random[1] % 3 == 0) {
          json.erase(at, 1 + random[2] % 40);
        } else {
          json[at] = replacements[random[2] % replacements.size()];
        }
      }
      try {
        const Tokenizer tokenizer = Tokenizer::from_files({.tokenizer = json}, "model");
        ++loaded;
        const auto ids = tokenizer.encode("the <s> caf\xC3\xA9 12\n", SpecialTokens::kAdd);
        tokenizer.decode(ids);
      } catch (const DataError& error) {
        EXPECT_FALSE(std::string(error.what()).empty());
      }
    }
  }
  EXPECT_GT(loaded, 20);
}

// A directory without tokenizer.json gives an error with what to do.
TEST(Tokenizer, SaysWhatADirectoryWithoutTokenizerJsonNeeds) {
  const std::string directory = testing::TempDir() + "/longshore_only_sentencepiece";
  make_directories(directory);
  create_file(directory + "/tokenizer.model");
  try {
    Tokenizer::load(directory);
    ADD_FAILURE() << "loaded";
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("has tokenizer.model but no tokenizer.json"), std::string::npos) << text;
    EXPECT_NE(text.find("save_pretrained"), std::string::npos) << text;
  }
  remove_tree(directory);
  EXPECT_THROW(Tokenizer::load(directory), DataError);
}

// Text that is not UTF-8 is refused.
TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = Tokenizer::load(golden_directory("gpt2"));
  EXPECT_THROW(tokenizer.encode("a\xFF", SpecialTokens::kAdd), DataError);
}

// Ids and tokens map to each other.
TEST(Tokenizer, KnowsItsTokensBothWays) {
  const Tokenizer tokenizer = Tokenizer::load(golden_directory("gpt2"));
  for (TokenId id = 0; id < tokenizer.id_limit(); ++id) {
    EXPECT_EQ(tokenizer.id_of(tokenizer.token_of(id).value()), id);
  }
  EXPECT_EQ(tokenizer.token_of(static_cast<TokenId>(tokenizer.id_limit())), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(-1), std::nullopt);
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{-100, 1'000'000}), "");
}

// bos and eos come from the model's config if the tokenizer names none.
TEST(Tokenizer, TakesEndsOfTextFromTheModelWhereTheTokenizerNamesNone) {
  TokenizerFiles files{.tokenizer = golden_json("gpt2")};
  EXPECT_EQ(Tokenizer::from_files(files, "model").eos(), std::nullopt);
  files.model_config = "{\"bos_token_id\": 0, \"eos_token_id\": 1}";
  EXPECT_EQ(Tokenizer::from_files(files, "model").eos(), 1);
  EXPECT_EQ(Tokenizer::from_files(files, "model").bos(), 0);
  files.generation_config = "{\"eos_token_id\": [5, 3, 999999]}";
  const Tokenizer tokenizer = Tokenizer::from_files(files, "model");
  EXPECT_EQ(tokenizer.eos(), 5);
  EXPECT_EQ(tokenizer.stop_ids(), (std::vector<TokenId>{3, 5}));
}

// The fingerprint changes with the files.
TEST(Tokenizer, FingerprintChangesWithTheFiles) {
  const TokenizerFiles files{.tokenizer = golden_json("gpt2")};
  TokenizerFiles other = files;
  other.tokenizer_config = "{\"eos_token\": \"<s>\"}";
  const auto fingerprint = [](const TokenizerFiles& f) {
    return Tokenizer::from_files(f, "model").fingerprint();
  };
  EXPECT_EQ(fingerprint(files), fingerprint(files));
  EXPECT_NE(fingerprint(files), fingerprint(other));
}

// Goal: text in which special tokens are text has, behind a special token, the ids that it has
// alone; so for tokenizers with and without a prefix at the start of a text.
TEST(Tokenizer, ReadsChosenSpecialTokensAsText) {
  for (const char* name : {"llama3", "llama2_legacy", "chat"}) {
    const Tokenizer tokenizer = Tokenizer::load(golden_directory(name));
    const std::string front = "</s>", text = front + "the </s> fox";
    const TextSpan chosen{front.size() + 4, front.size() + 8};
    std::vector<TokenId> expected = {tokenizer.id_of(front).value()};
    const auto add = [&expected](std::span<const TokenId> ids) {
      expected.insert(expected.end(), ids.begin(), ids.end());
    };
    tokenizer.encode_pieces(std::string_view(text).substr(front.size()), SpecialTokens::kNone, add,
                            SpelledTokens::kText);
    const EncodedText read =
        tokenizer.encode_with_spans(text, SpecialTokens::kNone, std::span(&chosen, 1));
    EXPECT_EQ(read.ids, expected) << name;
    EXPECT_EQ(std::ranges::count(read.ids, expected[0]), 1) << name;
    EXPECT_EQ(read.spans.back().end, text.size()) << name;
    EXPECT_EQ(tokenizer.spelled_in(text).size(), 2U) << name;
  }
}

// A special token that is a piece of the model, too, cannot be read as text, and says so.
TEST(Tokenizer, RefusesSpecialTokensThatOnlyTheModelReads) {
  const Tokenizer tokenizer = Tokenizer::load(golden_directory("unigram"));
  const std::string text = "the </s> fox";
  const TextSpan chosen{4, 8};
  EXPECT_THROW(tokenizer.encode_with_spans(text, SpecialTokens::kNone, std::span(&chosen, 1)),
               DataError);
  EXPECT_NO_THROW(tokenizer.encode(text, SpecialTokens::kNone));
}

// Several threads get the same ids at once.
TEST(Tokenizer, GivesTheSameIdsFromManyThreads) {
  const Tokenizer tokenizer = Tokenizer::load(golden_directory("llama3"));
  const std::string text = "the quick brown fox, then 1,024 caf\xC3\xA9s <|mark|>";
  const auto expected = tokenizer.encode(text, SpecialTokens::kAdd);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        count += tokenizer.encode(text, SpecialTokens::kAdd) != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace longshore
