// Rows of conversations and prompts: what is read and trained, and the errors for other rows.
#include <algorithm>

#include "base/texts.h"
#include "tests/data/prepare_fixture.h"

namespace longshore {
namespace {

class Rows : public PrepareFixture {
 protected:
  Rows() { options_.data.max_tokens = 4096; }
};

std::string dialog(const std::string& messages, const std::string& more = "") {
  return "{\"messages\": [" + messages + "]" + more + "}";
}
std::string message(const std::string& role, const std::string& content) {
  return "{\"role\": \"" + role + "\", \"content\": " + content + "}";
}
const std::string kQuestion = message("user", "\"q\"");
const std::string kAnswer = message("assistant", "\"a\"");

// Conversations train their answers; data.mask selects the last answer or everything.
TEST_F(Rows, TrainsTheAnswersOfConversations) {
  const LoadedData data =
      load(dialog(message("system", "\"s\"") + "," + kQuestion + "," + kAnswer + "," +
                  message("user", "\"r\"") + "," + message("assistant", "\"b\"")));
  EXPECT_EQ(text_of(tokens_of(data, 0)),
            "<system>s\n<user>q\n<assistant>a</s>\n<user>r\n<assistant>b</s>\n");
  EXPECT_EQ(learned(data, 0), "a</s>b</s>");
  EXPECT_EQ(data.report.files[0].format, "messages");
  options_.data.mask = DataSection::Mask::kLast;
  EXPECT_EQ(learned(load(), 0), "b</s>");
  options_.data.mask = DataSection::Mask::kAll;
  EXPECT_EQ(learned(load(), 0), "system>s\n<user>q\n<assistant>a</s>\n<user>r\n<assistant>b</s>\n");
}

int64_t ends_in(const Ids& tokens) {
  return std::count(tokens.begin(), tokens.end(), 0);
}

// Goal: a special token in a message is the token, text or a bad row, as data.special_tokens says;
// those that the template writes are tokens always.
TEST_F(Rows, ReadSpelledSpecialTokensOfMessagesAsAsked) {
  const std::string row =
      dialog(message("user", "\"x</s>\"") + "," + message("assistant", "\"b</s>c\""));
  const std::string text = "<user>x</s>\n<assistant>b</s>c</s>\n";
  const LoadedData kept = load(row);
  EXPECT_EQ(text_of(tokens_of(kept, 0)), text);
  EXPECT_EQ(ends_in(tokens_of(kept, 0)), 3);
  EXPECT_EQ(kept.report.files[0].special_tokens, 2);
  options_.data.special_tokens = DataSection::SpecialTokens::kText;
  const LoadedData read = load();
  EXPECT_EQ(text_of(tokens_of(read, 0)), text);
  EXPECT_EQ(ends_in(tokens_of(read, 0)), 1);
  EXPECT_EQ(tokens_of(read, 0).size(), text.size() - 3);  // the template's end is one token
  EXPECT_EQ(learned(read, 0), "b</s>c</s>");
  EXPECT_EQ(ends_in(targets_of(read, 0)), 1);
  EXPECT_EQ(read.report.files[0].special_tokens, 2);
  options_.data.special_tokens = DataSection::SpecialTokens::kError;
  const std::string refused = refusal(row);
  EXPECT_TRUE(
      refused.starts_with("rows.jsonl:1: messages[0]: the text spells the special token "
                          "</s>; remove it"))
      << refused;
  EXPECT_EQ(load(dialog(kQuestion + "," + kAnswer)).report.files[0].special_tokens, 0);
}

// Goal: the same for texts, prompts and pairs; the tokens of data.prompt_template are no user's.
TEST_F(Rows, ReadSpelledSpecialTokensOfTextsAsAsked) {
  const std::string prompt = "{\"prompt\": \"q</s>\", \"completion\": \"a</s>\"}";
  const std::string text = "{\"text\": \"t</s>\"}";
  EXPECT_EQ(ends_in(tokens_of(load(prompt), 0)), 2);
  EXPECT_EQ(tokens_of(load(text, "text.jsonl"), 0), (Ids{'t' - 32, 0}));
  options_.data.special_tokens = DataSection::SpecialTokens::kText;
  const Ids end = {'<' - 32, '/' - 32, 's' - 32, '>' - 32};
  const auto with_end = [&end](int64_t letter) {
    Ids ids = {letter - 32};
    ids.insert(ids.end(), end.begin(), end.end());
    ids.push_back(0);
    return ids;
  };
  EXPECT_EQ(tokens_of(load(text, "text.jsonl"), 0), with_end('t'));
  EXPECT_EQ(tokens_of(load("t</s>", "text.txt"), 0), with_end('t'));
  const LoadedData plain = load(prompt);
  EXPECT_EQ(plain.report.files[0].special_tokens, 2);
  EXPECT_EQ(text_of(tokens_of(plain, 0)), "q</s>a</s></s>");
  EXPECT_EQ(learned(plain, 0), "a</s></s>");
  EXPECT_EQ(ends_in(tokens_of(plain, 0)), 1);
  const LoadedData pair =
      load("{\"prompt\": \"q\", \"chosen\": \"a</s>\", \"rejected\": \"b\"}", "pair.jsonl");
  EXPECT_EQ(text_of(tokens_of(pair, 0)), "qa</s></s>");
  EXPECT_EQ(ends_in(tokens_of(pair, 0)), 1);
  options_.data.prompt_template = "{prompt}</s>";
  const LoadedData framed = load(prompt);
  EXPECT_EQ(text_of(tokens_of(framed, 0)), "q</s></s>a</s></s>");
  EXPECT_EQ(ends_in(tokens_of(framed, 0)), 2);
}

// ShareGPT rows, contents in parts, and renamed keys are read as conversations.
TEST_F(Rows, ReadsShareGptAndPartsAndOtherNames) {
  const std::string turns =
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, "
      "{\"from\": \"gpt\", \"value\": \"a\"}], \"system\": \"s\"}";
  EXPECT_EQ(text_of(tokens_of(load(turns), 0)), "<system>s\n<user>q\n<assistant>a</s>\n");
  const std::string parts =
      dialog(message("user",
                     "[{\"type\": \"text\", \"text\": \"q\"}, {\"type\": \"text\", \"text\": "
                     "\"r\"}]") +
             "," + kAnswer);
  EXPECT_EQ(text_of(tokens_of(load(parts), 0)), "<user>qr\n<assistant>a</s>\n");
  // A template that reads parts gets the parts unchanged.
  const ChatTemplate reads = ChatTemplate::from_text(
      "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for part in m.content %}{{ part.text }}{{ part.mark }}{% endfor %}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "reads");
  options_.chat = &reads;
  const std::string marked = dialog(
      message("user", "[{\"type\": \"text\", \"text\": \"q\", \"mark\": \"!\"}]") + "," + kAnswer);
  EXPECT_EQ(text_of(tokens_of(load(marked), 0)), "<user>q!<assistant>a");
  options_.chat = &plain_chat();
  options_.data.keys = {"messages = \"dialog\""};
  const LoadedData renamed = load("{\"dialog\": [" + kQuestion + "," + kAnswer + "]}");
  EXPECT_EQ(learned(renamed, 0), "a</s>");
}

// Goal: system messages and tools in other columns, or as JSON text, are read as in the row.
TEST_F(Rows, ReadsInstructionsAndToolsFromTheirColumns) {
  const ChatTemplate tells = ChatTemplate::from_text(
      "{{ (tools or []) | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "tells");
  options_.chat = &tells;
  const std::string talk = kQuestion + "," + kAnswer;
  EXPECT_EQ(text_of(tokens_of(load(dialog(talk, ", \"system\": \"s\"")), 0)),
            "[]<system>s<user>q<assistant>a");
  const std::string led = message("system", "\"own\"") + "," + talk;
  EXPECT_EQ(text_of(tokens_of(load(dialog(led, ", \"system\": \"s\"")), 0)),
            "[]<system>own<user>q<assistant>a");
  const std::string tool =
      ", \"tools\": \"[{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": \\\"{}\\\"}]\"";
  EXPECT_EQ(text_of(tokens_of(load(dialog(talk, tool)), 0)),
            "[{\"name\": \"f\", \"parameters\": {}}]<user>q<assistant>a");
}

// A text that was rendered before has the begin token, and the tokenizer adds one, which a
// configuration may not name: one is trained.
TEST_F(Rows, ATextThatWasRenderedBeforeBeginsOnce) {
  const TrainedTokenizer trained =
      byte_tokenizer({.bos_token = "<s>", .eos_token = "</s>", .bos_starts_text = true});
  options_.model_vocabulary_size = 258;
  for (const std::string& config :
       {trained.tokenizer_config_json, std::string("{\"eos_token\": \"</s>\"}")}) {
    const Tokenizer begins = Tokenizer::from_files(
        {.tokenizer = trained.tokenizer_json, .tokenizer_config = config}, "begins");
    options_.tokenizer = &begins;
    options_.cache += "+";
    const Ids plain = tokens_of(load("{\"text\": \"ab\"}"), 0);
    ASSERT_EQ(std::count(plain.begin(), plain.end(), *begins.id_of("<s>")), 1);
    for (const char* row : {"{\"text\": \"<s>ab\"}", "{\"prompt\": \"a\", \"completion\": \"b\"}",
                            "{\"prompt\": \"<s>a\", \"completion\": \"b\"}"}) {
      EXPECT_EQ(tokens_of(load(row), 0), plain) << row;
    }
  }
}

// A column that nobody reads may hold numbers that Python writes and JSON or 64 bits cannot.
TEST_F(Rows, NumbersOfUnreadColumnsAreNoReasonToRefuse) {
  for (const std::string number :
       {"NaN", "-Infinity", "1e999", "[123456789012345678901234567890]"}) {
    const std::string more = ", \"id\": " + number + ", \"system\": NaN";
    EXPECT_EQ(text_of(tokens_of(load(dialog(kQuestion + "," + kAnswer, more)), 0)),
              "<user>q\n<assistant>a</s>\n")
        << number;
  }
}

// Tables give a tool the parameters of all tools, null where they are another tool's. They are not
// written, as from Parquet, which has no nulls.
TEST_F(Rows, ParametersThatAToolLacksAreNotWritten) {
  const ChatTemplate tells = ChatTemplate::from_text(
      "{{ (tools or []) | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "tells");
  options_.chat = &tells;
  const std::string tool =
      ", \"tools\": [{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"default\": "
      "null}, \"b\": null}}}]";
  EXPECT_EQ(text_of(tokens_of(load(dialog(kQuestion + "," + kAnswer, tool)), 0)),
            "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"default\": null}}}}]"
            "<user>q<assistant>a");
}

// A row's chat_template_kwargs are variables of the template.
TEST_F(Rows, GivesTheTemplateWhatTheRowSays) {
  const ChatTemplate asks = ChatTemplate::from_text(
      "{{ mood }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "asks");
  options_.chat = &asks;
  const std::string row = dialog(kQuestion + "," + kAnswer,
                                 ", \"chat_template_kwargs\": {\"mood\": \"glad\", \"x\": null}");
  EXPECT_EQ(text_of(tokens_of(load(row), 0)), "glad<user>q<assistant>a");
  EXPECT_EQ(refusal(dialog(kQuestion + "," + kAnswer, ", \"chat_template_kwargs\": [1]")),
            "rows.jsonl:1: chat_template_kwargs: expected an object, found an array");
}

// Prompt and completion rows train the completion and eos; Alpaca rows are read as such where there
// is no chat template.
TEST_F(Rows, TrainsCompletionsAndTheirEos) {
  const LoadedData data = load("{\"prompt\": \"ab\", \"completion\": \"cd\"}\n");
  EXPECT_EQ(text_of(tokens_of(data, 0)), "abcd</s>");
  EXPECT_EQ(learned(data, 0), "cd</s>");
  options_.chat = nullptr;
  const LoadedData alpaca = load(
      "{\"instruction\": \"Do\", \"input\": \"\", \"output\": \"done\"}\n"
      "{\"instruction\": \"Do\", \"input\": \"this\", \"output\": \"done\"}\n");
  const std::string first = text_of(tokens_of(alpaca, 0)), second = text_of(tokens_of(alpaca, 1));
  EXPECT_NE(first.find("### Instruction:\nDo\n\n### Response:\ndone</s>"), std::string::npos);
  EXPECT_NE(second.find("### Input:\nthis\n\n### Response:\ndone</s>"), std::string::npos);
  EXPECT_EQ(learned(alpaca, 1), "done</s>");
}

// Goal: a token that spans the end of the prompt and the start of the completion is trained, else
// the model would not learn how an answer begins.
TEST_F(Rows, TrainsATokenThatSpellsPromptAndCompletion) {
  TokenizerRecipe recipe{.vocabulary_size = 258, .eos_token = "</s>"};
  TokenizerTrainer trainer(recipe);
  for (int i = 0; i < 20; ++i) trainer.add_document("bc");
  const TrainedTokenizer trained = trainer.finish();
  const Tokenizer pairs = Tokenizer::from_files(
      {.tokenizer = trained.tokenizer_json, .tokenizer_config = trained.tokenizer_config_json},
      "pairs");
  options_.tokenizer = &pairs;
  options_.model_vocabulary_size = 258;
  const LoadedData data = load("{\"prompt\": \"ab\", \"completion\": \"cd\"}\n");
  const Ids tokens = tokens_of(data, 0);
  ASSERT_EQ(tokens.size(), 4u) << "a, bc, d and the end";
  const Ids targets = targets_of(data, 0);
  EXPECT_EQ(targets, (Ids{tokens[1], tokens[2], tokens[3], kNotTrained}));
  const LoadedData apart = load("{\"prompt\": \"bca\", \"completion\": \"d\"}\n");
  EXPECT_EQ(targets_of(apart, 0).at(0), kNotTrained) << "a belongs to the prompt alone";
}

// data.prompt_template is filled from the row, and data.keys renames its keys.
TEST_F(Rows, FillsThePromptTemplateAndRenamesKeys) {
  options_.data.keys = {"prompt = \"question\"", "context = \"hint\"", "completion = \"answer\""};
  const std::string row = "{\"question\": \"{context}\", \"hint\": \"h\", \"answer\": \"a\"}\n";
  EXPECT_EQ(text_of(tokens_of(load(row), 0)), "{context}\n\nha</s>");
  options_.data.prompt_template = "Q: {prompt} ({context}) A: ";
  EXPECT_EQ(text_of(tokens_of(load(row), 0)), "Q: {context} (h) A: a</s>");
  EXPECT_EQ(learned(load(row), 0), "a</s>");
}

// Goal: with "chat" a prompt, its context and its answer are trained as the conversation that they
// are, in rows of prompts and in pairs; nothing of Alpaca's text is left.
TEST_F(Rows, WritesPromptsByTheChatTemplateIfAsked) {
  options_.data.prompt_template = "chat";
  const auto same = [this](const std::string& row, const std::string& question) {
    const LoadedData whole = load(dialog(message("user", question) + "," + kAnswer));
    const LoadedData found = load(row, "prompts.jsonl");
    EXPECT_EQ(tokens_of(found, 0), tokens_of(whole, 0)) << row;
    EXPECT_EQ(targets_of(found, 0), targets_of(whole, 0)) << row;
    EXPECT_EQ(learned(found, 0), "a</s>") << row;
  };
  same("{\"prompt\": \"q\", \"completion\": \"a\"}", "\"q\"");
  same("{\"instruction\": \"q\", \"input\": \"\", \"output\": \"a\"}", "\"q\"");
  same("{\"instruction\": \"q\", \"input\": \"i\", \"output\": \"a\"}", "\"q\\ni\"");
  const LoadedData pair =
      load("{\"instruction\": \"q\", \"input\": \"i\", \"chosen\": \"a\", \"rejected\": \"b\"}",
           "pairs.jsonl");
  EXPECT_EQ(tokens_of(pair, 0),
            tokens_of(load(dialog(message("user", "\"q\\ni\"") + "," + kAnswer)), 0));
  EXPECT_EQ(learned(pair, 1), "b</s>");
}

// Goal: Alpaca's rows of a model with a chat template are conversations without a key, and the
// report says so; a key that is set wins, and rows of prompts stay texts.
TEST_F(Rows, WritesInstructionsByTheChatTemplateThatThereIs) {
  const std::string alpaca = "{\"instruction\": \"q\", \"input\": \"i\", \"output\": \"a\"}\n";
  const LoadedData chat = load(alpaca);
  const LoadedData whole =
      load(dialog(message("user", "\"q\\ni\"") + "," + kAnswer), "conversations.jsonl");
  EXPECT_EQ(tokens_of(chat, 0), tokens_of(whole, 0));
  EXPECT_EQ(targets_of(chat, 0), targets_of(whole, 0));
  const std::string said = "chat template writes 1 rows with an instruction";
  EXPECT_NE(chat.report.lines().at(1).find(said), std::string::npos);
  EXPECT_EQ(text_of(tokens_of(load("{\"prompt\": \"q\", \"completion\": \"a\"}"), 0)), "qa</s>");
  options_.data.prompt_template = "alpaca";
  EXPECT_NE(text_of(tokens_of(load(alpaca), 0)).find("### Input:\ni\n\n"), std::string::npos);
}

// A prompt and completion may be lists of messages.
TEST_F(Rows, ReadsPromptsThatAreConversations) {
  const LoadedData data =
      load("{\"prompt\": [" + kQuestion + "], \"completion\": [" + kAnswer + "]}\n");
  EXPECT_EQ(learned(data, 0), "a</s>");
}

// Tool-call arguments that are JSON text reach the template as objects.
TEST_F(Rows, ParsesArgumentsThatAreStrings) {
  const ChatTemplate calls = ChatTemplate::from_text(
      "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}{% if "
      "add_generation_prompt %}"
      "<assistant>{% endif %}",
      letters(), "2024-07-26", "calls");
  options_.chat = &calls;
  const LoadedData data =
      load(dialog(kQuestion +
                  ",{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\", "
                  "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                  "\"{\\\"x\\\":1}\"}}]}," +
                  message("tool", "\"\"")));
  EXPECT_EQ(learned(data, 0), "f{\"x\": 1}");
}

struct Hostile {
  const char* what;
  std::string row;
  std::string message;  // the text after "rows.jsonl:2: "
};

std::vector<Hostile> hostile_messages() {
  return {
      {"no messages", "{\"text\": \"a\"}", "expected a key \"messages\", found text"},
      {"array row", "[]", "expected an object, found an array"},
      {"messages null", "{\"messages\": null}", "messages: expected an array, found null"},
      {"messages object", "{\"messages\": {}}", "messages: expected an array, found an object"},
      {"messages of unequal lists", "{\"messages\": {\"role\": [\"user\"], \"content\": []}}",
       "messages.content: has 0 values, others have 1"},
      {"no message", dialog(""), "messages: the array is empty"},
      {"message text", dialog("\"hi\""), "messages[0]: expected an object, found a string"},
      {"no role", dialog("{\"content\": \"a\"}"),
       "messages[0]: expected a key \"role\", found content"},
      {"role number", dialog("{\"role\": 3, \"content\": \"a\"}"),
       "messages[0].role: expected a string, found an integer"},
      {"role typo", dialog(message("assitant", "\"a\"")),
       "messages[0].role: \"assitant\" is no role, did you mean \"assistant\"?"},
      {"role strange", dialog(message("narrator of it all", "\"a\"")),
       "messages[0].role: \"narrator of it all\" is no role; expected system"},
      {"role empty", dialog(message("", "\"a\"")), "messages[0].role: the string is empty"},
      {"no content", dialog("{\"role\": \"user\"}"),
       "messages[0].content: expected a string, found nothing"},
      {"null content", dialog(kQuestion + "," + message("assistant", "null")),
       "messages[1].content: expected a string, found null"},
      {"number content", dialog(message("user", "5")),
       "messages[0].content: expected a string, found an integer"},
      {"boolean content", dialog(message("user", "true")),
       "messages[0].content: expected a string, found a boolean"},
      {"object content", dialog(message("user", "{}")),
       "messages[0].content: expected a string, found an object"},
      {"empty content", dialog(message("user", "\"\"")),
       "messages[0].content: the message is empty"},
      {"blank content", dialog(kQuestion + "," + message("assistant", "\" \\n\"")),
       "messages[1].content: the message is empty"},
      {"NUL content", dialog(message("user", "\"a\\u0000\"")),
       "messages[0].content: holds a NUL character"},
      {"image part", dialog(message("user", "[{\"type\": \"image_url\"}]")),
       "messages[0].content[0]: only parts of type \"text\" can be used"},
      {"part text", dialog(message("user", "[\"a\"]")),
       "messages[0].content[0]: expected an object, found a string"},
      {"part without text", dialog(message("user", "[{\"type\": \"text\"}]")),
       "messages[0].content[0]: expected a key \"text\""},
      {"part null", dialog(message("user", "[{\"type\": \"text\", \"text\": null}]")),
       "messages[0].content[0].text: expected a string, found null"},
      {"late system", dialog(kQuestion + "," + message("system", "\"s\"") + "," + kAnswer),
       "messages[1]: wrong order of roles: a system message must come before all others"},
      {"tool first", dialog(message("tool", "\"t\"") + "," + kAnswer),
       "messages[0]: wrong order of roles: a tool message must follow the assistant's call"},
      {"tool after user", dialog(kQuestion + "," + message("tool", "\"t\"")),
       "messages[1]: wrong order of roles: a tool message must follow"},
      {"template refuses", dialog(kQuestion + "," + kQuestion + "," + kAnswer),
       "the chat template says: two users in a row"},
      {"no answer", dialog(kQuestion), "messages: none of them is the assistant's"},
      {"weight 0",
       dialog(kQuestion + ",{\"role\": \"assistant\", \"content\": \"a\", "
                          "\"weight\": 0}"),
       "no token is trained"},
  };
}

std::vector<Hostile> hostile_calls() {
  const std::string call_head =
      kQuestion + ",{\"role\": \"assistant\", \"content\": null, \"tool_calls\": ";
  return {
      {"calls of user",
       dialog("{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": [{\"name\": \"f\"}]}"),
       "messages[0].tool_calls: only the assistant calls tools"},
      {"calls text", dialog(call_head + "\"f\"}"),
       "messages[1].tool_calls: expected an array, found a string"},
      {"call text", dialog(call_head + "[\"f\"]}"),
       "messages[1].tool_calls[0]: expected an object, found a string"},
      {"call nameless", dialog(call_head + "[{\"function\": {}}]}"),
       "messages[1].tool_calls[0]: expected a function with a name"},
      {"call name number", dialog(call_head + "[{\"function\": {\"name\": 1}}]}"),
       "messages[1].tool_calls[0].name: expected a string, found an integer"},
      {"arguments broken",
       dialog(call_head + "[{\"function\": {\"name\": \"f\", \"arguments\": \"{x\"}}]}"),
       "messages[1].tool_calls[0].arguments: the string is no JSON object: not JSON: "},
      {"large integer in a call",
       dialog(call_head + "[{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, "
                          "123456789012345678901234567890]}}}]}"),
       "messages[1].tool_calls[0].function.arguments.a[1]: an integer outside 64 bits; write it "
       "as"},
      {"large integer in a tool",
       dialog(kQuestion + "," + kAnswer,
              ", \"tools\": [{\"name\": 123456789012345678901234567890}]"),
       "tools[0].name: an integer outside 64 bits"},
      {"not a number", dialog(message("user", "NaN") + "," + kAnswer),
       "messages[0].content: expected a string, found null"},
      {"arguments list",
       dialog(call_head + "[{\"function\": {\"name\": \"f\", \"arguments\": [1]}}]}"),
       "messages[1].tool_calls[0].arguments: expected an object, found an array"},
      {"no calls, no content", dialog(call_head + "[]}"),
       "messages[1].content: expected a string, found null"},
      {"tools object", dialog(kQuestion + "," + kAnswer, ", \"tools\": {}"),
       "tools: expected an array, found an object"},
      {"tools broken", dialog(kQuestion + "," + kAnswer, ", \"tools\": \"[\""),
       "tools: the string is no JSON"},
      {"tool number", dialog(kQuestion + "," + kAnswer, ", \"tools\": [1]"),
       "tools[0]: expected an object, found an integer"},
      {"turn without value", "{\"conversations\": [{\"from\": \"human\"}]}",
       "conversations[0]: expected a key \"value\", found from"},
      {"strange speaker", "{\"conversations\": [{\"from\": \"alien\", \"value\": \"a\"}]}",
       "conversations[0].from: \"alien\" is not known; expected human, gpt, system or tool"},
      {"turn null", "{\"conversations\": [{\"from\": \"human\", \"value\": null}]}",
       "conversations[0].value: expected a string, found null"},
      {"part not trained",
       dialog(kQuestion + "," +
              message("assistant", "[{\"type\": \"text\", \"text\": \"a\", \"train\": false}]")),
       "messages[1].content[0]: parts of an answer cannot be left out of training"},
      {"offsets trained",
       "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", "
       "\"value\": "
       "\"a\", \"train_detail\": [{}]}]}",
       "conversations[1].train_detail: parts of an answer cannot be left out of training"},
      {"call turn", "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"f(\"}]}",
       "conversations[0].value: the call is no JSON"},
      {"turn empty", "{\"conversations\": [{\"from\": \"human\", \"value\": \"\"}]}",
       "conversations[0].value: the string is empty"},
      {"bad UTF-8", dialog(message("user", "\"\xC3(\"")), "not JSON: "},
      {"lone surrogate", dialog(message("user", "\"\\udc00\"")), "not JSON: "},
      {"key twice", dialog("{\"role\": \"user\", \"role\": \"user\", \"content\": \"a\"}"),
       "key \"role\" occurs twice"},
      {"cut off", "{\"messages\": [{\"role\": \"user\"", "not JSON: "},
      {"deep", dialog(std::string(80, '[') + std::string(80, ']')), "nested deeper than 64"},
  };
}

std::vector<Hostile> hostile_conversations() {
  std::vector<Hostile> all = hostile_messages();
  for (Hostile& bad : hostile_calls()) all.push_back(std::move(bad));
  return all;
}

std::vector<Hostile> hostile_prompts() {
  return {
      {"no completion", "{\"prompt\": \"a\"}", "expected a key \"completion\", found prompt"},
      {"no prompt", "{\"completion\": \"a\"}", "expected a key \"prompt\", found completion"},
      {"null completion", "{\"prompt\": \"a\", \"completion\": null}",
       "completion: expected a string, found null"},
      {"empty completion", "{\"prompt\": \"a\", \"completion\": \"\"}",
       "completion: the string is empty"},
      {"empty prompt", "{\"prompt\": \"\", \"completion\": \"a\"}", "prompt: the string is empty"},
      {"list and text", "{\"prompt\": [], \"completion\": \"a\"}",
       "completion: a text, but prompt holds messages"},
      {"NUL", "{\"prompt\": \"a\", \"completion\": \"\\u0000\"}",
       "completion: holds a NUL character"},
      {"context number", "{\"prompt\": \"a\", \"context\": 4, \"completion\": \"b\"}",
       "context: expected a string, found an integer"},
      {"no messages inside", "{\"prompt\": [], \"completion\": []}",
       "messages: the array is empty"},
      {"large integer", "{\"prompt\": 123456789012345678901234567890, \"completion\": \"a\"}",
       "prompt: expected a string, found an integer outside 64 bits"},
      {"instruction alone", "{\"instruction\": \"a\"}",
       "expected a key \"output\", found instruction"},
      {"a word", "word", "not JSON: "},
  };
}

// Every hostile row gives an error with file, line and position.
TEST_F(Rows, NamesFileLineAndPlaceOfEveryHostileRow) {
  EXPECT_GE(hostile_conversations().size() + hostile_prompts().size(), 60u);
  const std::string good_dialog = dialog(kQuestion + "," + kAnswer) + "\n";
  for (const Hostile& bad : hostile_conversations()) {
    const std::string text = refusal(good_dialog + bad.row + "\n" + good_dialog);
    EXPECT_EQ(text.find("rows.jsonl:2: " + bad.message), 0u) << bad.what << ": " << text;
  }
  const std::string good_prompt = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  for (const Hostile& bad : hostile_prompts()) {
    const std::string text = refusal(good_prompt + bad.row + "\n" + good_prompt);
    EXPECT_EQ(text.find("rows.jsonl:2: " + bad.message), 0u) << bad.what << ": " << text;
  }
}

// With data.bad_rows = "skip" hostile rows are skipped and counted.
TEST_F(Rows, SkipsAndCountsHostileRowsWhereTheRunFileSaysSo) {
  options_.data.bad_rows = DataSection::BadRows::kSkip;
  const std::string good = dialog(kQuestion + "," + kAnswer) + "\n";
  std::string content = good;
  for (const Hostile& bad : hostile_conversations()) content += bad.row + "\n" + good;
  const LoadedData data = load(content);
  const auto bad_count = static_cast<int64_t>(hostile_conversations().size());
  EXPECT_EQ(data.report.total().bad_rows, bad_count);
  EXPECT_EQ(data.dataset->document_count(), bad_count + 1);
}

// data.mask = "assistant" is refused for rows without answers.
TEST_F(Rows, RefusesAMaskOfAnswersWhereThereAreNone) {
  options_.data.mask = DataSection::Mask::kAssistant;
  EXPECT_EQ(refusal("{\"text\": \"abc\"}\n").find("rows.jsonl:1: data.mask asks for answers only"),
            0u);
  EXPECT_EQ(refusal("{\"input_ids\": [1, 2]}\n").find("rows.jsonl:1: data.mask asks for"), 0u);
  EXPECT_EQ(learned(load("{\"input_ids\": [65, 66], \"labels\": [-100, 66]}\n"), 0), "b");
}

// Conversations without a chat template are refused with that reason.
TEST_F(Rows, SaysThatConversationsNeedATemplate) {
  options_.chat = nullptr;
  const std::string text = refusal(dialog(kQuestion + "," + kAnswer));
  EXPECT_EQ(text.find("conversations need a chat template"), 0u) << text;
}

// Goal: the words of all trainers for "do not train this message", of which only weight may be a
// fraction.
TEST_F(Rows, DoNotTrainWhatSaysSo) {
  for (const char* word : {"\"loss\": false", "\"train\": false", "\"training\": false",
                           "\"weight\": 0", "\"weight\": 0.0", "\"loss\": 0"}) {
    SCOPED_TRACE(word);
    const std::string bad =
        "{\"role\": \"assistant\", \"content\": \"bad\", " + std::string(word) + "}";
    const std::string good = "{\"role\": \"assistant\", \"content\": \"good\", \"loss\": true}";
    const std::string again = message("user", "\"again\"");
    EXPECT_EQ(learned(load(dialog(kQuestion + "," + bad + "," + again + "," + good)), 0),
              "good</s>");
  }
  const std::string half = "{\"role\": \"assistant\", \"content\": \"half\", \"train\": 0.5}";
  EXPECT_EQ(refusal(dialog(kQuestion + "," + half)),
            "rows.jsonl:1: messages[1].train: expected true, false, 1 or 0, found 0.5; the member "
            "\"weight\" takes other numbers");
}

TEST_F(Rows, TakeAnEmptyListOfCallsForNone) {
  const std::string row =
      "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\", \"tool_calls\": []}, {\"role\": "
      "\"assistant\", \"content\": \"yo\", \"tool_calls\": []}], \"tools\": []}";
  EXPECT_EQ(learned(load(row), 0), "yo</s>");
}

TEST_F(Rows, AreRefusedWhereTheTemplateLeavesNothingOfACall) {
  const std::string call =
      "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", "
      "\"function\": {\"name\": \"w\", \"arguments\": {\"city\": \"Oslo\"}}}]}";
  const std::string text =
      refusal(dialog(message("user", "\"weather?\"") + "," + call + "," +
                     message("tool", "\"21\"") + "," + message("assistant", "\"Warm.\"")));
  EXPECT_TRUE(
      text.starts_with("rows.jsonl:1: messages[1]: the chat template writes nothing of "
                       "this answer, neither its content nor its tool_calls"))
      << text;
}

// Goal: nothing that a row says is left out without a word.
TEST_F(Rows, SayWhatIsNotReadAndNotWritten) {
  const std::string thoughtful =
      "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"hm\", "
      "\"loss_scale\": 2, \"loss\": true}";
  const LoadedData data = load(dialog(kQuestion + "," + thoughtful, ", \"id\": 7") + "\n" +
                               dialog(kQuestion + "," + kAnswer, ", \"id\": 8") + "\n");
  const FileReport& report = data.report.files[0];
  EXPECT_EQ(report.unread,
            (std::map<std::string, int64_t>{{"id", 2}, {"messages[].loss_scale", 1}}));
  EXPECT_EQ(report.unwritten_thoughts, 1);
  ASSERT_EQ(data.report.warnings().size(), 1u);
  EXPECT_NE(data.report.warnings()[0].find("does not write 1 thoughts"), std::string::npos)
      << data.report.warnings()[0];
  const LoadedData two_systems = load(
      dialog(message("system", "\"a\"") + "," + kQuestion + "," + kAnswer, ", \"system\": \"b\""));
  EXPECT_EQ(two_systems.report.files[0].unread, (std::map<std::string, int64_t>{{"system", 1}}));
}

// Goal: a member's name is cut between characters, so that the report remains valid JSON.
TEST_F(Rows, NameLongMembersInWholeCharacters) {
  std::string name;
  for (int i = 0; i < 20; ++i) name += "\xE5\x90\x8D";
  const LoadedData data = load(dialog(kQuestion + "," + kAnswer, ", \"" + name + "\": 7"));
  const std::map<std::string, int64_t>& unread = data.report.files[0].unread;
  ASSERT_EQ(unread.size(), 1u);
  EXPECT_FALSE(first_invalid_utf8(unread.begin()->first)) << unread.begin()->first;
  EXPECT_NO_THROW(to_json(data.report.files[0]).dump());
  const std::string unknown =
      refusal("{\"messages\": [{\"role\": \"" + name + "\", \"content\": \"a\"}]}");
  EXPECT_FALSE(first_invalid_utf8(unknown)) << unknown;
}

}  // namespace
}  // namespace longshore
