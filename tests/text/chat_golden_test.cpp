// Templates, conversations and ten thousand random texts give the results of transformers, which
// make_chat_goldens.py recorded.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/test_files.h"
#include "tests/text/digest.h"
#include "text/chat_encoder.h"

namespace longshore {
namespace {

std::string text_data(const std::string& name) {
  return test_data() + "/text/" + name;
}

const Tokenizer& tokenizer_named(const std::string& name) {
  static std::map<std::string, Tokenizer> loaded;
  auto found = loaded.find(name);
  if (found == loaded.end()) {
    found = loaded.emplace(name, Tokenizer::load(text_data("golden/" + name))).first;
  }
  return found->second;
}

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(text_data("chat_templates"))) {
    names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ChatVariables variables_of(const Json& conversation) {
  ChatVariables variables;
  if (conversation.contains("tools")) variables.tools = conversation["tools"];
  variables.add_generation_prompt = conversation.value("add_generation_prompt", false);
  variables.arguments = conversation.value("arguments", Json::object());
  return variables;
}

std::vector<int> mask_of(const EncodedChat& chat) {
  return {chat.trained.begin(), chat.trained.end()};
}

class ChatGolden : public testing::TestWithParam<std::string> {
 protected:
  void expect_case(const ChatTemplate& chat, const Tokenizer& tokenizer, const Json& conversation,
                   const Json& golden) {
    const Json& messages = conversation["messages"];
    const ChatVariables variables = variables_of(conversation);
    if (golden.contains("error")) {
      EXPECT_THROW(chat.render(messages, variables), ChatProblem) << golden["error"];
      return;
    }
    ASSERT_EQ(chat.render(messages, variables).text, golden["text"].get<std::string>());
    const ChatEncoder encoder(&tokenizer, &chat);
    const std::vector<EncodedChat> all = encoder.encode(messages, variables, ChatMask::kAll);
    ASSERT_EQ(all.size(), 1u);
    ASSERT_EQ(all.front().ids, golden["ids"].get<std::vector<TokenId>>());
    try {
      const auto encoded = encoder.encode(messages, variables, ChatMask::kAssistant);
      ++masks_;
      // chat_sample_test.cpp covers conversations that make several samples.
      if (golden["mask"].is_null()) return;
      ASSERT_EQ(encoded.size(), 1u);
      EXPECT_EQ(mask_of(encoded.front()), golden["mask"].get<std::vector<int>>())
          << encoded.front().text;
    } catch (const ChatProblem& problem) {
      // The reference leaves everything untrained if there is no answer.
      const std::string mask = golden["mask"].dump();
      EXPECT_TRUE(golden["mask"].is_null() || mask.find('1') == std::string::npos)
          << problem.what();
    }
  }

  int masks_ = 0;
};

// Rendered text, tokens and masks agree with transformers.
TEST_P(ChatGolden, RendersTokenisesAndMasksAsTransformersDoes) {
  const Json conversations = read_json_file(text_data("chat_golden/conversations.json"), {});
  const Json golden = read_json_file(text_data("chat_golden/" + GetParam() + ".json"), {});
  const std::string path = text_data("chat_templates/" + GetParam() + ".jinja");
  for (const auto& [name, cases] : golden.items()) {
    const Tokenizer& tokenizer = tokenizer_named(name);
    const ChatTemplate chat =
        ChatTemplate::from_text(read_whole_file(path, kMiB), tokenizer, "2024-07-26", path);
    ASSERT_EQ(cases.size(), conversations.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(name + ", conversation " + std::to_string(i));
      expect_case(chat, tokenizer, conversations[i], cases[i]);
    }
  }
  EXPECT_GE(masks_, 8);
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatGolden, testing::ValuesIn(template_names()),
                         [](const auto& info) { return info.param; });

std::string digest_of(const Tokenizer& tokenizer, std::span<const std::string> texts) {
  uint64_t state = kFnvBasis;
  for (const std::string& text : texts) {
    const std::vector<TokenId> ids = tokenizer.encode(text, SpecialTokens::kNone);
    state = fnv(state, static_cast<uint32_t>(ids.size()));
    for (const TokenId id : ids) state = fnv(state, static_cast<uint32_t>(id));
  }
  return hash_text(state);
}

// Ten thousand random texts give the tokens of transformers.
TEST(TokenizerFuzz, TokenisesTenThousandTextsAsTransformersDoes) {
  std::vector<std::string> texts;
  std::ifstream file(text_data("chat_golden/fuzz_texts.jsonl"));
  for (std::string line; std::getline(file, line);) {
    texts.push_back(parse_json(line, {}, "fuzz_texts.jsonl").get<std::string>());
  }
  ASSERT_EQ(texts.size(), 10'000u);
  const Json digests = read_json_file(text_data("chat_golden/fuzz_digests.json"), {});
  ASSERT_GE(digests.size(), 6u);
  for (const auto& [name, blocks] : digests.items()) {
    ASSERT_EQ(blocks.size(), 100u);
    for (size_t block = 0; block < blocks.size(); ++block) {
      EXPECT_EQ(digest_of(tokenizer_named(name), std::span(texts).subspan(100 * block, 100)),
                blocks[block].get<std::string>())
          << name << ", texts from " << 100 * block;
    }
  }
}

}  // namespace
}  // namespace longshore
