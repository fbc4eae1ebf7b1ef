// Every answer of a conversation is trained once, behind the exact tokens with which transformers
// asks the model for it; make_sample_goldens.py recorded these.
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/test_files.h"
#include "tests/text/digest.h"
#include "text/chat_encoder.h"

namespace longshore {
namespace {

const std::string kFolder = test_data() + "/text/";

const Tokenizer& bytes() {
  static const Tokenizer loaded = Tokenizer::load(kFolder + "golden/bytes");
  return loaded;
}

const Json& goldens() {
  static const Json read = read_json_file(kFolder + "sample_golden.json", {});
  return read;
}

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& [name, cases] : goldens()["templates"].items()) names.push_back(name);
  return names;
}

// TrainedAnswer: the tokens before an answer, and its own without blanks at the end.
struct TrainedAnswer {
  std::string before, answer;
};

std::string answer_text(const EncodedChat& chat, size_t begin, size_t end) {
  const std::vector<TokenId> ids(chat.ids.begin() + static_cast<ptrdiff_t>(begin),
                                 chat.ids.begin() + static_cast<ptrdiff_t>(end));
  std::string text = bytes().decode(ids, /*skip_special=*/false);
  text.resize(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

std::vector<TrainedAnswer> answers_of(const std::vector<EncodedChat>& samples) {
  std::vector<TrainedAnswer> answers;
  for (const EncodedChat& chat : samples) {
    for (size_t t = 0; t < chat.ids.size();) {
      size_t end = t;
      while (end < chat.ids.size() && chat.trained[end]) ++end;
      if (end > t) {
        const std::string text = answer_text(chat, t, end);
        answers.push_back({digest_of_ids(std::span(chat.ids).first(t)),
                           digest_of_ids(bytes().encode(text, SpecialTokens::kNone))});
      }
      t = std::max(end, t + 1);
    }
  }
  return answers;
}

// Conversations that the template writes, but of which something else would be trained: deepseek
// writes the second call without its head and its arguments, and qwen3_8 writes an empty thought
// before the thought that is in a content.
bool is_refused(const std::string& name, size_t conversation) {
  if (name == "published_templates/qwen3_8.jinja") return conversation == 2;
  return name == "chat_templates/deepseek.jinja" && (conversation == 4 || conversation == 5);
}

class ChatSamples : public testing::TestWithParam<std::string> {};

// Every answer is trained once, behind the tokens that the model will see.
TEST_P(ChatSamples, TrainEveryAnswerOnceBehindWhatTheModelWillSee) {
  const std::string path = kFolder + GetParam();
  const ChatTemplate chat =
      ChatTemplate::from_text(read_whole_file(path, kMiB), bytes(), "2024-07-26", path);
  const ChatEncoder encoder(&bytes(), &chat);
  const Json& conversations = goldens()["conversations"];
  const Json& cases = goldens()["templates"][GetParam()];
  ASSERT_EQ(cases.size(), conversations.size());
  size_t compared = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("conversation " + std::to_string(i) + ": " + conversations[i].dump());
    ChatVariables variables;
    if (conversations[i].contains("tools")) variables.tools = conversations[i]["tools"];
    variables.arguments = conversations[i].value("arguments", Json::object());
    const Json& messages = conversations[i]["messages"];
    if (cases[i].contains("refused")) {
      EXPECT_THROW(encoder.encode(messages, variables, ChatMask::kAssistant), ChatProblem);
      continue;
    }
    if (is_refused(GetParam(), i)) {
      EXPECT_THROW(encoder.encode(messages, variables, ChatMask::kAssistant), AnswerProblem);
      continue;
    }
    const auto found = answers_of(encoder.encode(messages, variables, ChatMask::kAssistant));
    const Json& wanted = cases[i]["answers"];
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t k = 0; k < wanted.size(); ++k, ++compared) {
      EXPECT_EQ(found[k].before, wanted[k][0].get<std::string>()) << "answer " << k;
      if (wanted[k][1].is_null()) continue;  // asked for with other text
      EXPECT_EQ(found[k].answer, wanted[k][1].get<std::string>()) << "answer " << k;
    }
  }
  EXPECT_GE(compared, 10u);
}

std::string name_of_template(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(0, info.param.find('.'));
  for (char& letter : name) letter = letter == '/' ? '_' : letter;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatSamples, testing::ValuesIn(template_names()),
                         name_of_template);

}  // namespace
}  // namespace longshore
