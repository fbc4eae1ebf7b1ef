#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "tests/fakes/test_files.h"
#include "text/chat_encoder.h"

namespace longshore {
namespace {

const std::string kChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(test_data() + "/text/golden/chat");
  return loaded;
}

ChatTemplate chat_of(const std::string& source) {
  return ChatTemplate::from_text(source, tokenizer(), "2024-07-26", "test");
}

Json conversation(std::initializer_list<std::pair<const char*, const char*>> messages) {
  Json array = Json::array();
  for (const auto& [role, content] : messages) {
    array.push_back({{"role", role}, {"content", content}});
  }
  return array;
}

std::string problem_of(const std::string& source, const Json& messages, ChatMask mask) {
  try {
    const ChatTemplate chat = chat_of(source);
    ChatEncoder(&tokenizer(), &chat).encode(messages, {}, mask);
  } catch (const ChatProblem& problem) {
    return problem.what();
  }
  return "no problem";
}

// Returns the trained text of each sample.
std::vector<std::string> trained_texts(const std::string& source, const Json& messages,
                                       ChatMask mask) {
  const ChatTemplate chat = chat_of(source);
  std::vector<std::string> texts;
  for (const EncodedChat& encoded : ChatEncoder(&tokenizer(), &chat).encode(messages, {}, mask)) {
    std::vector<TokenId> trained;
    for (size_t t = 0; t < encoded.ids.size(); ++t) {
      if (encoded.trained[t]) trained.push_back(encoded.ids[t]);
    }
    texts.push_back(tokenizer().decode(trained, /*skip_special=*/false));
  }
  return texts;
}

std::string trained_text(const std::string& source, const Json& messages, ChatMask mask) {
  const std::vector<std::string> texts = trained_texts(source, messages, mask);
  return texts.size() == 1 ? texts.front() : std::to_string(texts.size()) + " samples";
}

const Json kTwoTurns =
    conversation({{"user", "one"}, {"assistant", "two"}, {"user", "three"}, {"assistant", "four"}});

class ChatTemplateFiles : public testing::Test {
 protected:
  ChatTemplateFiles()
      : directory_(testing::TempDir() + "longshore-chat-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(directory_);
  }
  ~ChatTemplateFiles() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& name, const std::string& text) const {
    write_all(create_file(directory_ + "/" + name), text);
  }
  std::string rendered(const Json& tools = nullptr, const std::string& file = "") const {
    const auto chat = ChatTemplate::load(directory_, tokenizer(), {.file = file});
    if (!chat) return "none";
    return chat->render(kTwoTurns, {.tools = tools}).text;
  }
  std::string directory_;
};

// chat_template.jinja wins over tokenizer_config.json, and a given file over both.
TEST_F(ChatTemplateFiles, TakesTheJinjaFileBeforeTheConfigurationAndAGivenFileBeforeBoth) {
  EXPECT_EQ(rendered(), "none");
  write("tokenizer_config.json", "{\"chat_template\": \"config\"}");
  EXPECT_EQ(rendered(), "config");
  write("chat_template.jinja", "file\r\n\r\n");
  EXPECT_EQ(rendered(), "file\n");
  write("own.jinja", "own");
  EXPECT_EQ(rendered(nullptr, directory_ + "/own.jinja"), "own");
}

// A configuration with an integer beyond 64 bits is read; transformers writes such a length.
TEST_F(ChatTemplateFiles, ReadsAConfigurationWithAnIntegerBeyond64Bits) {
  write("tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"config\"}");
  EXPECT_EQ(rendered(), "config");
}

// Among named templates "tool_use" is chosen for conversations with tools.
TEST_F(ChatTemplateFiles, ChoosesAmongNamedTemplatesByTools) {
  write("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"}, "
        "{\"name\": \"tool_use\", \"template\": \"tools {{ tools | length }}\"}]}");
  EXPECT_EQ(rendered(), "plain");
  EXPECT_EQ(rendered(Json::array({Json{{"name", "f"}}})), "tools 1");
  write("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"x\", \"template\": \"y\"}]}");
  EXPECT_THROW(rendered(), DataError);
  write("tokenizer_config.json", "{\"chat_template\": 3}");
  EXPECT_THROW(rendered(), DataError);
  write("tokenizer_config.json", "{\"chat_template\": \"{% if %}\"}");
  EXPECT_THROW(rendered(), DataError);
}

// Named templates are read from additional_chat_templates, as transformers 5 keeps them.
TEST_F(ChatTemplateFiles, TakesNamedTemplatesFromTheirFolder) {
  std::filesystem::create_directories(directory_ + "/additional_chat_templates");
  write("tokenizer_config.json", "{\"chat_template\": \"config\"}");
  write("additional_chat_templates/tool_use.jinja", "tools {{ tools | length }}");
  EXPECT_THROW(rendered(), DataError);  // the file has no default template
  write("chat_template.jinja", "file");
  EXPECT_EQ(rendered(), "file");
  EXPECT_EQ(rendered(Json::array({Json{{"name", "f"}}})), "tools 1");
}

// Exactly the text that the mask names is trained.
TEST(ChatEncoder, TrainsWhatTheMaskNames) {
  EXPECT_EQ(trained_text(kChatml, kTwoTurns, ChatMask::kAssistant), "two<|im_end|>four<|im_end|>");
  EXPECT_EQ(trained_text(kChatml, kTwoTurns, ChatMask::kLast), "four<|im_end|>");
  const Json answers = conversation({{"user", "q"}, {"assistant", "a"}, {"assistant", "b"}});
  EXPECT_EQ(trained_text(kChatml, answers, ChatMask::kCompletion), "a<|im_end|>b<|im_end|>");
  EXPECT_EQ(trained_text(kChatml, answers, ChatMask::kLast), "b<|im_end|>");
  EXPECT_EQ(
      trained_text(kChatml, conversation({{"user", "q"}, {"assistant", "a"}}), ChatMask::kAll),
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n");
}

// Answers with weight zero are not trained.
TEST(ChatEncoder, LeavesAnswersWithWeightZeroOut) {
  Json messages = kTwoTurns;
  messages[1]["weight"] = 0;
  EXPECT_EQ(trained_text(kChatml, messages, ChatMask::kAssistant), "four<|im_end|>");
  const std::string marked =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "<|im_end|>{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}";
  EXPECT_EQ(trained_text(marked, messages, ChatMask::kAssistant), "four<|im_end|>");
}

using Texts = std::vector<std::string>;

// Each run of answers that later turns leave unchanged is one sample.
TEST(ChatEncoder, MakesASampleOfEachRunOfAnswersThatStayAsTheyAre) {
  const std::string rewrites =
      "{% for m in messages %}<{{ m.role }}{% if loop.last %} last{% endif %}>{{ m.content }}"
      "{% endfor %}{% if add_generation_prompt %}<assistant last>{% endif %}";
  EXPECT_EQ(trained_texts(rewrites, kTwoTurns, ChatMask::kAssistant), (Texts{"two", "four"}));
  EXPECT_EQ(trained_texts(rewrites, kTwoTurns, ChatMask::kLast), (Texts{"four"}));
  const ChatTemplate chat = chat_of(rewrites);
  const auto samples = ChatEncoder(&tokenizer(), &chat).encode(kTwoTurns, {}, ChatMask::kAssistant);
  EXPECT_EQ(samples[0].text, "<user last>one<assistant last>two");
  EXPECT_EQ(samples[1].text, "<user>one<assistant>two<user last>three<assistant last>four");
}

// Answers behind unchanged earlier turns are one sample.
TEST(ChatEncoder, AnswersBehindEarlierOnesAsTheyWereAreOneSample) {
  const std::string forgets =
      "{% for m in messages %}<{{ m.role }}>{% if messages | length > 3 and loop.index < 3 %}..."
      "{% else %}{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(trained_texts(forgets, kTwoTurns, ChatMask::kAssistant), (Texts{"twofour"}));
}

// Answers are trained behind the text with which the model is asked for them.
TEST(ChatEncoder, TrainsAnswersBehindWhatTheyAreAskedForWith) {
  const std::string asks_otherwise =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
  const ChatTemplate chat = chat_of(asks_otherwise);
  const auto samples = ChatEncoder(&tokenizer(), &chat).encode(kTwoTurns, {}, ChatMask::kAssistant);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].text, "<user>one<assistant><think>\n\n</think>\n\ntwo");
  EXPECT_EQ(samples[1].text,
            "<user>one<assistant>two<user>three<assistant><think>\n\n</think>\n\nfour");
  EXPECT_EQ(trained_texts(asks_otherwise, kTwoTurns, ChatMask::kLast),
            (Texts{"\n</think>\n\nfour"}));
}

// A conversation without answers is refused.
TEST(ChatEncoder, RefusesAConversationWithoutAnswers) {
  EXPECT_EQ(problem_of(kChatml, conversation({{"user", "q"}}), ChatMask::kAssistant),
            "messages: none of them is the assistant's");
}

// The text of raise_exception is reported.
TEST(ChatTemplate, SaysWhatTheTemplateRaises) {
  EXPECT_EQ(problem_of("{{ raise_exception('roles must alternate') }}", kTwoTurns, ChatMask::kAll),
            "the chat template says: roles must alternate");
  EXPECT_NE(problem_of("{{ messages[9].content.x }}", kTwoTurns, ChatMask::kAll), "no problem");
}

// A template that does not end is stopped.
TEST(ChatTemplate, StopsATemplateThatDoesNotEnd) {
  const std::string endless =
      "{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}";
  EXPECT_EQ(problem_of(endless, kTwoTurns, ChatMask::kAll),
            "the chat template does not come to an end");
}

// The date of a template is the given day.
TEST(ChatTemplate, KnowsTheDayItIsToldAndNoOther) {
  const ChatTemplate dated = chat_of("{{ strftime_now('%d %b %Y, %A') }}");
  EXPECT_TRUE(dated.uses_date());
  EXPECT_EQ(dated.render(kTwoTurns, {}).text, "26 Jul 2024, Friday");
  EXPECT_FALSE(chat_of(kChatml).uses_date());
  for (const char* date : {"today", "2024-13-01", "2023-02-29", "2024-7-26"}) {
    EXPECT_THROW(ChatTemplate::from_text(kChatml, tokenizer(), date, "test"), DataError) << date;
  }
}

// Goal: removing generation marks leaves the same rendered text, including whitespace around them
// and the scope of names set in a block, for programs other than transformers.
TEST(GenerationMarks, AreTakenOutWithoutATrace) {
  const Json messages = conversation({{"user", "hi"}, {"assistant", "yo"}});
  const std::string head = "{% for m in messages %}<|im_start|>{{ m.role }}\n";
  for (const std::string& body :
       {std::string("  {% generation %}\n{{ m.content }}  {% endgeneration %}\n!"),
        std::string("  {%- generation -%}\n {{ m.content }} {%- endgeneration -%}\n !"),
        std::string("  {%+ generation %}{{ m.content }}\n   {% endgeneration %}\n\n!"),
        std::string("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ m.content }}"
                    "{% endgeneration %}{{ x }}"),
        std::string("{# {% generation %} marks what is trained #}{{ m.content }}")}) {
    const std::string source = head + body + "{% endfor %}";
    const std::string bare = without_generation_marks(source);
    EXPECT_EQ(chat_of(bare).render(messages, {}).text, chat_of(source).render(messages, {}).text)
        << bare;
    EXPECT_TRUE(chat_of(bare).render(messages, {}).generated.empty()) << bare;
  }
  EXPECT_EQ(without_generation_marks("a{%- generation %}b{% endgeneration -%}c"),
            "a{#- #}b{# -#}c");
  EXPECT_EQ(without_generation_marks("{% generation %}{% set x = 1 %}{% endgeneration %}"),
            "{% with %}{% set x = 1 %}{% endwith %}");
  const std::string other = "{% if x %}{{ y }}{# generation #}{% endif %} {% raw";
  EXPECT_EQ(without_generation_marks(other), other);
}

}  // namespace
}  // namespace longshore
