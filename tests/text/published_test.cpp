// Tokenizers and chat templates of published models, cut to a few hundred merges, give the results
// of transformers, which make_published_goldens.py recorded.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/test_files.h"
#include "tests/text/digest.h"
#include "text/chat_template.h"

namespace longshore {
namespace {

const std::string kPublished = test_data() + "/text/published/";

std::vector<std::string> directory_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kPublished)) {
    if (entry.is_directory()) names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// AnswerDigest: a digest of an answer's parts, each behind its length; an absent part has length 0.
class AnswerDigest {
 public:
  AnswerDigest& ids(const std::vector<TokenId>& ids) {
    add(ids.size());
    for (const TokenId id : ids) add(static_cast<size_t>(id));
    return *this;
  }
  AnswerDigest& spans(const std::vector<TextSpan>& spans) {
    add(2 * spans.size());
    for (const TextSpan& span : spans) add(span.begin), add(span.end);
    return *this;
  }
  AnswerDigest& text(const std::string& text) {
    add(text.size());
    for (const char byte : text) add(static_cast<unsigned char>(byte));
    return *this;
  }
  Json done() const { return hash_text(state_); }

 private:
  void add(size_t number) { state_ = fnv(state_, static_cast<uint32_t>(number)); }
  uint64_t state_ = kFnvBasis;
};

Json text_digest(const Tokenizer& tokenizer, const std::string& text) {
  const EncodedText plain = tokenizer.encode_with_spans(text, SpecialTokens::kNone);
  const std::vector<TokenId> special = tokenizer.encode(text, SpecialTokens::kAdd);
  return AnswerDigest()
      .ids(plain.ids)
      .ids(special)
      .spans(plain.spans)
      .text(tokenizer.decode(special, /*skip_special=*/true))
      .text(tokenizer.decode(special, /*skip_special=*/false))
      .text("")
      .done();
}

Json chat_digest(const Tokenizer& tokenizer, const ChatTemplate& chat, const Json& asked) {
  ChatVariables variables;
  if (asked.contains("tools")) variables.tools = asked["tools"];
  variables.add_generation_prompt = asked.value("add_generation_prompt", false);
  variables.arguments = asked.value("arguments", Json::object());
  try {
    const std::string text = chat.render(asked["messages"], variables).text;
    const std::vector<TokenId> ids = tokenizer.encode(text, SpecialTokens::kNone);
    return AnswerDigest().ids(ids).ids({}).spans({}).text("").text("").text(text).done();
  } catch (const ChatProblem&) {
    return nullptr;  // transformers refuses it too
  }
}

class Published : public testing::TestWithParam<std::string> {
 protected:
  const std::string directory_ = kPublished + GetParam();
  const Tokenizer tokenizer_ = Tokenizer::load(directory_);
  const Json golden_ = read_json_file(directory_ + "/golden.json", {});
  const Json questions_ = read_json_file(kPublished + "questions.json", {});
};

Json optional_number(std::optional<TokenId> id) {
  return id ? Json(*id) : Json(nullptr);
}

// Goal: the tokens, their bytes and the decoded texts agree with the class that transformers gives
// a directory, with its normalizer, pattern, post-processor and added tokens.
TEST_P(Published, TokenisesAsTransformersDoes) {
  EXPECT_EQ(tokenizer_.vocabulary_size(), golden_["vocabulary_size"].get<int64_t>());
  EXPECT_EQ(optional_number(tokenizer_.bos()), golden_["bos"]);
  EXPECT_EQ(optional_number(tokenizer_.eos()), golden_["eos"]);
  EXPECT_EQ(optional_number(tokenizer_.pad()), golden_["pad"]);
  const Json& texts = questions_["texts"];
  ASSERT_EQ(texts.size(), golden_["texts"].size());
  ASSERT_GE(texts.size(), 100u);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(text_digest(tokenizer_, texts[i].get<std::string>()), golden_["texts"][i])
        << texts[i];
  }
}

// Rendered conversations agree with transformers.
TEST_P(Published, RendersConversationsAsTransformersDoes) {
  const std::optional<ChatTemplate> chat = ChatTemplate::load(directory_, tokenizer_, {});
  const Json& wanted = golden_["conversations"];
  ASSERT_EQ(chat.has_value(), !wanted.empty());
  const Json& conversations = questions_["conversations"];
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(chat_digest(tokenizer_, *chat, conversations.at(i)), wanted[i]) << conversations[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Directories, Published, testing::ValuesIn(directory_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace longshore
