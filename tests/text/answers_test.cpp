// Training covers each answer's own rendering, whole and once, and nothing of any other message,
// for any form of the template's prompt for an answer.
#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/fakes/test_files.h"
#include "text/chat_encoder.h"

namespace longshore {
namespace {

const std::string kFolder = test_data() + "/text/";

const Tokenizer& bytes() {
  static const Tokenizer loaded = Tokenizer::load(kFolder + "golden/bytes");
  return loaded;
}

ChatTemplate chat_of(const std::string& source) {
  return ChatTemplate::from_text(source, bytes(), "2024-07-26", "test");
}

ChatTemplate published(const std::string& name) {
  return chat_of(read_whole_file(kFolder + "published_templates/" + name + ".jinja", kMiB));
}

Json say(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Json thinks(const std::string& thought, const std::string& content) {
  return {{"role", "assistant"}, {"content", content}, {"reasoning_content", thought}};
}

Json calls(const std::string& name, const std::string& content = "") {
  return {{"role", "assistant"},
          {"content", content},
          {"tool_calls",
           Json::array({{{"type", "function"},
                         {"function", {{"name", name}, {"arguments", {{"city", "Oslo"}}}}}}})}};
}

// A sample: what stands before the first trained part, and the trained parts.
struct Trained {
  std::string before;
  std::vector<std::string> answers;
};

std::vector<Trained> trained(const ChatTemplate& chat, const Json& messages,
                             const Json& arguments = Json::object(),
                             ChatMask mask = ChatMask::kAssistant, ChatNotes* notes = nullptr) {
  const ChatEncoder encoder(&bytes(), &chat);
  std::vector<Trained> samples;
  for (const EncodedChat& encoded :
       encoder.encode(messages, {.arguments = arguments}, mask, notes)) {
    Trained& sample = samples.emplace_back();
    for (size_t t = 0; t < encoded.ids.size(); ++t) {
      const std::string text = bytes().decode(std::vector{encoded.ids[t]}, false);
      const bool begins = encoded.trained[t] && (t == 0 || !encoded.trained[t - 1]);
      if (begins) sample.answers.emplace_back();
      if (encoded.trained[t]) sample.answers.back() += text;
      if (sample.answers.empty()) sample.before += text;
    }
  }
  return samples;
}

std::string problem(const ChatTemplate& chat, const Json& messages) {
  try {
    trained(chat, messages);
  } catch (const ChatProblem& refused) {
    return refused.what();
  }
  return "no problem";
}

using Answers = std::vector<std::string>;

const Json kThought = Json::array({say("user", "3+3?"), thinks("twice three", "6")});

// Goal: a question that says there is no thought has none of it behind its end.
TEST(Answers, HaveNoThoughtBehindAClosedOne) {
  const ChatTemplate own = chat_of(
      "{% for m in messages %}[{{ m.role }}]\n{% if m.reasoning_content %}<think>\n"
      "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}[assistant]\n{% if think is defined and not think %}"
      "<think>\n\n</think>\n\n{% endif %}{% endif %}");
  for (const ChatMask mask : {ChatMask::kAssistant, ChatMask::kLast}) {
    ChatNotes notes;
    const auto samples = trained(own, kThought, {{"think", false}}, mask, &notes);
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_TRUE(samples[0].before.ends_with("[assistant]\n<think>\n\n</think>\n\n"));
    EXPECT_EQ(samples[0].answers, Answers{"6\n"});
    EXPECT_EQ(notes.thoughts, 1);
  }
  ChatNotes notes;
  EXPECT_EQ(trained(own, kThought, {}, ChatMask::kAssistant, &notes)[0].answers,
            Answers{"<think>\ntwice three\n</think>\n\n6\n"});
  EXPECT_EQ(notes.thoughts, 0);
}

TEST(Answers, OfPublishedTemplatesHaveNoThoughtBehindAClosedOne) {
  for (const char* name : {"qwen3", "qwen3_5_think", "glm4moe"}) {
    SCOPED_TRACE(name);
    const ChatTemplate chat = published(name);
    ChatNotes notes;
    const auto samples =
        trained(chat, kThought, {{"enable_thinking", false}}, ChatMask::kAssistant, &notes);
    ASSERT_EQ(samples.size(), 1u);
    ASSERT_EQ(samples[0].answers.size(), 1u);
    const std::string& answer = samples[0].answers[0];
    EXPECT_EQ(answer.find("twice"), std::string::npos) << answer;
    EXPECT_EQ(answer.find("think"), std::string::npos) << answer;
    EXPECT_NE(answer.find("6"), std::string::npos) << answer;
    EXPECT_EQ(notes.thoughts, 1);
    // Also between calls of tools, where the thought stands in the content.
    Json first = calls("w");
    first["content"] = "<think>\nlook it up\n</think>\n\n";
    const auto more = trained(
        chat,
        Json::array({say("user", "q"), first, say("tool", "21"), thinks("so it is", "Warm.")}),
        {{"enable_thinking", false}});
    for (const Trained& sample : more) {
      for (const std::string& part : sample.answers) {
        EXPECT_EQ(part.find("look it up"), std::string::npos) << part;
        EXPECT_EQ(part.find("so it is"), std::string::npos) << part;
      }
    }
  }
}

// Goal: templates that do not know a thought in a content never have it trained behind </think>.
TEST(Answers, HaveNoThoughtInTheirContentBehindAClosedOne) {
  const std::string turns =
      "{% for m in messages %}[{{ m.role }}]\n{% if m.role == 'assistant' %}<think>\n"
      "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}\n{% endfor %}";
  const ChatTemplate opens =
      chat_of(turns + "{% if add_generation_prompt %}[assistant]\n<think>\n{% endif %}");
  const Json inside =
      Json::array({say("user", "3+3?"), say("assistant", "<think>\ntwice three\n</think>\n\n6")});
  EXPECT_EQ(problem(opens, inside),
            "messages[1]: the chat template closes a thought before it writes the thought of this "
            "answer; give the thought in reasoning_content, or leave it out");
  EXPECT_EQ(trained(opens, kThought)[0].answers, Answers{"twice three\n</think>\n\n6\n"});
  const ChatTemplate closes = chat_of(
      turns + "{% if add_generation_prompt %}[assistant]\n<think>\n\n</think>\n\n{% endif %}");
  ChatNotes notes;
  EXPECT_EQ(trained(closes, inside, {}, ChatMask::kAssistant, &notes)[0].answers, Answers{"6\n"});
  EXPECT_EQ(notes.thoughts, 1);
}

// Goal: words that only the question has take no letters from the answer.
TEST(Answers, AreWholeBehindWordsThatTheyShareLettersWith) {
  const ChatTemplate steps = chat_of(
      "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}[assistant] Step by step: {% endif %}");
  for (const char* content : {"Stop. It is 4.", "S", "Step", "Step by step, it is 4.", " Step"}) {
    const auto samples =
        trained(steps, Json::array({say("user", "2+2?"), say("assistant", content)}));
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_EQ(samples[0].before, "[user] 2+2?\n[assistant] Step by step: ");
    EXPECT_EQ(samples[0].answers, Answers{std::string(content) + "\n"});
  }
  const ChatTemplate reasons = chat_of(
      "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n{{ m.content }}<|end|>\n"
      "{% else %}<|user|>\n{{ m.content }}\n{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>\nHere are my reasoning steps:\n{% endif %}");
  const auto samples =
      trained(reasons, Json::array({say("user", "Hi!"), say("assistant", "Hello!"),
                                    say("user", "Here?"), say("assistant", "Here are two.")}));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].answers, Answers{"Hello!<|end|>"});
  EXPECT_EQ(samples[1].answers, Answers{"Here are two.<|end|>"});
  EXPECT_EQ(samples[1].before,
            "<|user|>\nHi!\n<|assistant|>\nHello!<|end|>\n<|user|>\nHere?\n<|assistant|>\n"
            "Here are my reasoning steps:\n");
}

// Goal: blanks that an answer begins with are its own, unless the template takes them away.
TEST(Answers, KeepTheBlanksThatTheyBeginWith) {
  const std::string asks = "{% if add_generation_prompt %}(bot) {% endif %}";
  const ChatTemplate keeps =
      chat_of("{% for m in messages %}[{{ m.role }}] {{ m.content }};{% endfor %}" + asks);
  const ChatTemplate trims =
      chat_of("{% for m in messages %}[{{ m.role }}] {{ m.content | trim }};{% endfor %}" + asks);
  for (const char* blanks : {"", " ", "\n\n", "\x1d", "\t\x1f "}) {
    const Json pair = Json::array({say("user", "q"), say("assistant", blanks + std::string("a "))});
    EXPECT_EQ(trained(keeps, pair)[0].answers, Answers{blanks + std::string("a ;")});
    EXPECT_EQ(trained(trims, pair)[0].answers, Answers{"a;"});
  }
}

// Goal: an answer that begins with a call is found where a content would begin.
TEST(Answers, ThatAreCallsAreWholeBehindOtherWords) {
  const ChatTemplate chat = chat_of(
      "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls or [] %}"
      "<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>{% endfor %}\n"
      "{% endfor %}{% if add_generation_prompt %}[assistant] <call> or words: {% endif %}");
  const auto samples =
      trained(chat, Json::array({say("user", "?"), calls("weather"), say("tool", "21")}));
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].answers, Answers{"<call>weather{\"city\": \"Oslo\"}</call>"});
}

// Goal: where the template does not write a call, it is known of which answers nothing is left.
TEST(Answers, AreNamedWhereNothingIsLeftOfACall) {
  const ChatTemplate chat = chat_of(
      "{% for m in messages %}[{{ m.role }}] {{ m.content }} END\n{% endfor %}"
      "{% if add_generation_prompt %}[assistant] {% endif %}");
  ChatNotes notes;
  trained(chat,
          Json::array(
              {say("user", "weather?"), calls("w"), say("tool", "21"), say("assistant", "Warm.")}),
          {}, ChatMask::kAssistant, &notes);
  EXPECT_EQ(notes.emptied, std::vector<size_t>{1});
  EXPECT_EQ(notes.calls, 1);
  const auto samples = trained(chat, Json::array({say("user", "?"), calls("w", "Let me see.")}), {},
                               ChatMask::kAssistant, &notes);
  EXPECT_EQ(samples[0].answers, Answers{"Let me see. END\n"});
  EXPECT_EQ(notes.calls, 1);
  EXPECT_TRUE(notes.emptied.empty());
}

// Goal: the same of contents, which a template for lists of parts may leave out.
TEST(Answers, AreNamedWhereNothingIsLeftOfAContent) {
  const ChatTemplate chat = chat_of(
      "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{{ part.text }}{% endfor %};"
      "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
  ChatNotes notes;
  trained(chat, Json::array({say("user", "q"), say("assistant", "a")}), {}, ChatMask::kAssistant,
          &notes);
  EXPECT_EQ(notes.emptied, std::vector<size_t>{1});
  EXPECT_EQ(notes.texts, 2);
}

TEST(Answers, CountWhatTheTemplateDoesNotWrite) {
  const ChatTemplate chat = chat_of(
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }}] "
      "{{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant] "
      "{% endif %}");
  const ChatEncoder encoder(&bytes(), &chat);
  ChatVariables variables;
  variables.tools = Json::array({{{"type", "function"}, {"function", {{"name", "w"}}}}});
  ChatNotes notes;
  encoder.encode(Json::array({say("system", "Be kind."), say("user", "?"), thinks("hm", "Yes."),
                              say("tool", "21"), say("assistant", "No.")}),
                 variables, ChatMask::kAssistant, &notes);
  EXPECT_EQ(notes.instructions, 2);
  EXPECT_EQ(notes.thoughts, 1);
  EXPECT_EQ(notes.tools, 1);
  EXPECT_EQ(notes.calls, 0);
  EXPECT_EQ(notes.texts, 0);
}

// Goal: what follows the last trained answer is no part that the model misses, even if no sample
// has it, because the template writes the answer differently when more follows.
TEST(Answers, DoNotCountWhatFollowsTheLastOne) {
  const ChatTemplate chat = chat_of(
      "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and not loop.last %}old {% "
      "endif %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
  ChatNotes notes;
  const Json question = say("user", "?"), answer = say("assistant", "a");
  const auto samples = trained(chat, Json::array({question, answer, say("tool", "12 degrees")}), {},
                               ChatMask::kAssistant, &notes);
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].answers, Answers{"a;"});
  EXPECT_EQ(notes.instructions, 0);
  const ChatTemplate blind = chat_of(
      "{% for m in messages %}{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content }};{% endif %}"
      "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
  trained(blind, Json::array({question, answer, say("tool", "12 degrees"), answer}), {},
          ChatMask::kAssistant, &notes);
  EXPECT_EQ(notes.instructions, 1);
}

// Goal: templates that change, merge or repeat what they are given.
TEST(Answers, AreWholeOrRefusedWhateverTheTemplateDoes) {
  const ChatTemplate trims = chat_of(
      "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }};{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}");
  const Json pair = Json::array({say("user", " q \n"), say("assistant", "\n\n a \n")});
  EXPECT_EQ(trained(trims, pair)[0].answers, Answers{"a;"});
  const ChatTemplate merges = chat_of(
      "{% set ns = namespace(role='') %}{% for m in messages %}{% if m.role != ns.role %}"
      "{% if not loop.first %}</s>{% endif %}[{{ m.role }}]{% else %}\n{% endif %}{{ m.content }}"
      "{% set ns.role = m.role %}{% endfor %}</s>{% if add_generation_prompt %}[assistant]"
      "{% endif %}");
  const auto merged = trained(
      merges, Json::array({say("user", "q"), say("assistant", "one"), say("assistant", "two")}));
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_EQ(merged[0].answers, (Answers{"one</s>", "two</s>"}));
  const ChatTemplate twice = chat_of(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}={{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}");
  EXPECT_EQ(trained(twice, Json::array({say("user", "q"), say("assistant", "a")}))[0].answers,
            Answers{"a=a;"});
  const ChatTemplate repeats = chat_of(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% if m.role == 'assistant' %}"
      "(to: {{ messages[loop.index0 - 1].content }}){% endif %}{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}");
  const std::string refused =
      problem(repeats, Json::array({say("user", "q"), say("assistant", "a")}));
  EXPECT_TRUE(
      refused.starts_with("messages[0]: the chat template writes a part of this message "
                          "among the words of an answer"))
      << refused;
  const ChatTemplate marks_all = chat_of(
      "{% generation %}{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
      "{% endgeneration %}");
  EXPECT_TRUE(problem(marks_all, Json::array({say("user", "q"), say("assistant", "a")}))
                  .starts_with("messages[0]: the chat template writes a part"));
  // By its letters, so that marks cannot be told from what they change.
  const ChatTemplate counts = chat_of(
      "{% for m in messages %}[{{ m.role }} {{ m.content | length }}]{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}[assistant 1]{% endif %}");
  EXPECT_EQ(trained(counts, Json::array({say("user", "q"), say("assistant", "a")}))[0].answers,
            Answers{"a;"});
  EXPECT_TRUE(problem(counts, Json::array({say("user", "q"), say("assistant", "ab")}))
                  .starts_with("messages[1]: the chat template asks for this answer with other"));
}

}  // namespace
}  // namespace longshore
