// Training templates write each answer as the published template asks the model for it;
// chat_sample_test.cpp compares that with transformers.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/test_files.h"
#include "text/chat_encoder.h"

namespace longshore {
namespace {

const std::string kFolder = test_data() + "/text/";

const Tokenizer& bytes() {
  static const Tokenizer loaded = Tokenizer::load(kFolder + "golden/bytes");
  return loaded;
}

std::string published_file(const std::string& name) {
  return read_whole_file(kFolder + "published_templates/" + name + ".jinja", kMiB);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

// Returns the published template of a test name.
std::string published(const std::string& name) {
  if (name == "qwen3_first") {
    return read_json_file(kFolder + "published/qwen3/tokenizer_config.json", {})["chat_template"];
  }
  if (name == "llama3_first") {  // adds a generation prompt to every conversation
    const std::string asked = "{% if add_generation_prompt %}";
    std::string text = replaced(published_file("llama3"), asked, "");
    return text.erase(text.rfind("{% endif %}"));
  }
  return published_file(name);
}

std::vector<Json> conversations() {
  std::vector<Json> all;
  for (const char* file : {"sample_golden.json", "published/questions.json"}) {
    const Json read = read_json_file(kFolder + file, {});
    all.insert(all.end(), read["conversations"].begin(), read["conversations"].end());
  }
  // These answers begin like the mark of a thought.
  for (const char* answer : {"<b>bold</b>", "<th", "<think", "\n<i>"}) {
    const Json turn = {{{"role", "user"}, {"content", "q"}},
                       {{"role", "assistant"}, {"content", answer}},
                       {{"role", "user"}, {"content", "r"}},
                       {{"role", "assistant"}, {"content", answer}}};
    all.push_back({{"messages", turn}});
  }
  return all;
}

// Returns the trained texts of a sample.
std::vector<std::string> trained_texts(const EncodedChat& chat) {
  std::vector<std::string> texts;
  for (size_t t = 0; t < chat.ids.size();) {
    size_t end = t;
    while (end < chat.ids.size() && chat.trained[end]) ++end;
    if (end > t) {
      texts.push_back(bytes().decode({chat.ids.begin() + static_cast<ptrdiff_t>(t),
                                      chat.ids.begin() + static_cast<ptrdiff_t>(end)},
                                     /*skip_special=*/false));
    }
    t = std::max(end, t + 1);
  }
  return texts;
}

std::string without_end(std::string text, const std::string& end) {
  if (text.ends_with(end)) text.resize(text.size() - end.size());
  return text;
}

struct Counts {
  size_t conversations = 0, answers = 0, whole = 0;
};

class TrainingTemplates : public testing::TestWithParam<std::string> {
 protected:
  TrainingTemplates()
      : published_(ChatTemplate::from_text(published(GetParam()), bytes(), "2024-07-26", "x")),
        training_(ChatTemplate::from_text(training_template(published(GetParam()), "x").text,
                                          bytes(), "2024-07-26", "x")) {}

  // Compares each answer of a conversation that the published template accepts.
  void compare(const Json& asked) {
    ChatVariables variables;
    if (asked.contains("tools")) variables.tools = asked["tools"];
    variables.arguments = asked.value("arguments", Json::object());
    const ChatEncoder before(&bytes(), &published_), after(&bytes(), &training_);
    try {
      before.encode(asked["messages"], variables, ChatMask::kAssistant);
    } catch (const ChatProblem&) {
      EXPECT_THROW(after.encode(asked["messages"], variables, ChatMask::kAssistant), ChatProblem);
      return;
    }
    const auto whole = after.encode(asked["messages"], variables, ChatMask::kAssistant);
    ASSERT_EQ(whole.size(), 1u);
    const std::vector<std::string> trained = trained_texts(whole.front());
    ++counts_.conversations;
    Json messages = Json::array();
    size_t answers = 0;
    for (const Json& message : asked["messages"]) {
      messages.push_back(message);
      if (message["role"] != "assistant") continue;
      const EncodedChat one = before.encode(messages, variables, ChatMask::kLast).back();
      const EncodedChat ours = after.encode(messages, variables, ChatMask::kAssistant).back();
      ASSERT_LT(answers, trained.size());
      ASSERT_EQ(trained_texts(one).size(), 1u);
      const std::string wanted = trained_texts(one).front();
      // No prompt asks for an answer that comes first, so only its content is known.
      EXPECT_TRUE(messages.size() == 1 ? trained[answers].ends_with(wanted)
                                       : trained[answers] == wanted)
          << trained[answers] << "\npublished:\n"
          << wanted;
      EXPECT_EQ(trained_texts(ours).back(), trained[answers]);
      // The text after an answer changes nothing before it.
      EXPECT_TRUE(whole.front().text.starts_with(without_end(ours.text, "\n")));
      const std::string text = without_end(one.text, published_.unasked_opening());
      if (text == ours.text) ++counts_.whole;
      if (answers == 0 && messages.size() > 1) {
        EXPECT_EQ(ours.text, text);
      }
      expect_same_turn(ours.text, text, wanted, messages);
      ++answers, ++counts_.answers;
    }
    EXPECT_EQ(trained.size(), answers);
  }

  // Compares from the last question on, if one answer follows it.
  static void expect_same_turn(const std::string& ours, const std::string& wanted,
                               const std::string& answer, const Json& messages) {
    if (messages.size() < 2) return;
    const Json& question = messages[messages.size() - 2];
    if (question["role"] != "user" || !question["content"].is_string()) return;
    const std::string content = question["content"];
    const char* blanks = " \n\x1c\x1f";
    const size_t first = content.find_first_not_of(blanks);
    if (first == std::string::npos) return;
    const std::string word = content.substr(first, content.find_last_not_of(blanks) + 1 - first);
    const size_t asked = wanted.rfind(word, wanted.rfind(answer) - word.size());
    ASSERT_NE(asked, std::string::npos);
    EXPECT_TRUE(ours.ends_with(wanted.substr(asked))) << ours << "\npublished:\n" << wanted;
  }

  ChatTemplate published_, training_;
  Counts counts_;
};

// The training template writes each answer as the published one asks for it.
TEST_P(TrainingTemplates, WriteEachAnswerAsThePublishedOneAsksForIt) {
  for (const Json& asked : conversations()) {
    if (asked.value("add_generation_prompt", false)) continue;
    SCOPED_TRACE(asked.dump());
    compare(asked);
  }
  EXPECT_GE(counts_.conversations, 35u);
  EXPECT_GE(counts_.answers, 66u);
  // Llama's templates never rewrite an earlier answer.
  if (GetParam().starts_with("llama")) {
    EXPECT_EQ(counts_.whole, counts_.answers);
  }
}

INSTANTIATE_TEST_SUITE_P(Known, TrainingTemplates,
                         testing::Values("qwen3", "qwen3_first", "deepseek_r1_distill", "gptoss",
                                         "llama3", "llama3_first", "llama3_1", "llama3_2"),
                         [](const auto& info) { return info.param; });

// A training template is found by the text of the published one.
TEST(TrainingTemplate, IsKnownByThePublishedText) {
  const std::string text = published("qwen3");
  EXPECT_EQ(training_template(text, "x").name, "Qwen3");
  EXPECT_EQ(training_template(text + "\n", "x").text, training_template(text, "x").text);
  EXPECT_EQ(training_template(published("gptoss"), "x").name, "gpt-oss");
  try {
    training_template(text + " ", "models/mine/chat_template.jinja");
    FAIL() << "nothing was said";
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()),
              "models/mine/chat_template.jinja: data.chat_template = \"training\" knows the "
              "templates of Qwen3, DeepSeek R1 distills, gpt-oss, Llama 3, Llama 3.1, Llama 3.2 as "
              "they were published, and this is none of them; leave data.chat_template at \"auto\" "
              "(a conversation may become several samples), or name a copy of the template with "
              "{% generation %} and {% endgeneration %} around what the model writes");
  }
}

// The training template replaces the directory's own when training.
TEST(TrainingTemplate, IsTakenForWhatTheDirectoryHas) {
  const std::string folder = kFolder + "published/qwen3";
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const auto found = ChatTemplate::load(folder, tokenizer, {});
  const auto training = ChatTemplate::load(folder, tokenizer, {.training = true});
  EXPECT_EQ(found->replaced(), "");
  EXPECT_EQ(training->replaced(), "Qwen3");
  const Json asked = {{"role", "user"}, {"content", "a"}};
  const Json answered = {{"role", "assistant"}, {"content", "b"}};
  const Json messages = Json::array({asked, answered});
  EXPECT_TRUE(found->render(messages, {}).generated.empty());
  EXPECT_FALSE(training->render(messages, {}).generated.empty());
  EXPECT_NE(found->fingerprint(), training->fingerprint());
  EXPECT_THROW(ChatTemplate::load(kFolder + "published/deepseek_v4", tokenizer, {.training = true}),
               DataError);
}

}  // namespace
}  // namespace longshore
