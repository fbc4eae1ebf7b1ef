// Messages as JSON text in members of rows, and members that hold something else than a text or
// messages.
#include "tests/data/prepare_fixture.h"

namespace longshore {
namespace {

class MessageTexts : public PrepareFixture {
 protected:
  MessageTexts() { options_.data.max_tokens = 4096; }

  // Returns the tokens and targets of all documents of a row.
  std::vector<Ids> documents(const std::string& row) {
    const LoadedData data = load(row);
    std::vector<Ids> all;
    for (int64_t d = 0; d < data.dataset->document_count(); ++d) {
      all.push_back(tokens_of(data, d));
      all.push_back(targets_of(data, d));
    }
    report_ = data.report.files[0];
    return all;
  }

  FileReport report_;  // of the last row
};

// Returns the text as a JSON string.
std::string quoted(const std::string& text) {
  return Json(text).dump();
}

const std::string kQuestion = R"({"role": "user", "content": "q"})";
const std::string kGood = R"({"role": "assistant", "content": "a"})";
const std::string kBad = R"({"role": "assistant", "content": "b"})";

std::string list(const std::string& messages) {
  return "[" + messages + "]";
}

// Replaces @ in a row by the member's value, as JSON or as its text.
std::string filled(std::string row, const std::vector<std::string>& values, bool as_text) {
  for (const std::string& value : values) {
    row.replace(row.find('@'), 1, as_text ? quoted(value) : value);
  }
  return row;
}

// Goal: JSON text with messages gives the tokens of the messages, in every format, and is counted.
TEST_F(MessageTexts, AreReadAsTheMessages) {
  const std::string wrapped = "{\"messages\": " + list(kQuestion + "," + kGood) + "}";
  struct Row {
    std::string row;
    std::vector<std::string> values;
    std::string format;
  };
  const std::vector<Row> rows = {
      {R"({"chosen": @, "rejected": @})",
       {list(kQuestion + "," + kGood), list(kQuestion + "," + kBad)},
       "preference"},
      {R"({"chosen": @, "rejected": @})",
       {wrapped, "{\"messages\": " + list(kQuestion + "," + kBad) + "}"},
       "preference"},
      {R"({"prompt": "q", "chosen": @, "rejected": @})",
       {list(kQuestion + "," + kGood), list(kQuestion + "," + kBad)},
       "preference"},
      {R"({"prompt": @, "chosen": @, "rejected": @})",
       {list(kQuestion), list(kGood), list(kBad)},
       "preference"},
      {R"({"prompt": @, "chosen": @, "rejected": @})",
       {list(kQuestion), kGood, kBad},
       "preference"},
      {R"({"prompt": @, "completion": @})", {list(kQuestion), list(kGood)}, "prompt-completion"},
      {R"({"prompt": @, "completion": @, "label": true})",
       {list(kQuestion), list(kGood)},
       "unpaired-preference"},
      {R"({"messages": @})", {list(kQuestion + "," + kGood)}, "messages"},
      {R"({"messages": [@, @]})", {kQuestion, kGood}, "messages"},
      {R"({"conversations": @})",
       {R"([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])"},
       "messages"},
      {R"({"chosen": @})", {list(kQuestion + "," + kGood)}, "messages"}};
  for (const Row& row : rows) {
    const std::vector<Ids> expected = documents(filled(row.row, row.values, false));
    EXPECT_EQ(report_.json_messages, 0) << row.row;
    EXPECT_EQ(documents(filled(row.row, row.values, true)), expected) << row.row;
    EXPECT_EQ(report_.json_messages, 1) << row.row;
    EXPECT_EQ(report_.json_texts, 0) << row.row;
    EXPECT_EQ(report_.format, row.format) << row.row;
  }
  const std::string text = list(kQuestion + "," + kGood);
  EXPECT_EQ(documents("{\"text\": " + quoted(text) + "}"),
            documents("{\"messages\": " + text + "}"));
}

// Goal: an answer that is honest JSON stays a text, and one that is a list of messages behind a
// prompt in plain words does too, but is counted.
TEST_F(MessageTexts, OfAnswersThatAreJsonStayTexts) {
  for (const std::string answer : {R"({"a": 1})", R"([{"name": "x", "content": "y"}])",
                                   R"({"role": "engineer", "content": 1})", R"([1, 2])",
                                   R"({"messages": []})", "[{'a': 1}]", "[see: 'role']"}) {
    const LoadedData data = load("{\"prompt\": \"q\", \"completion\": " + quoted(answer) + "}");
    EXPECT_EQ(learned(data, 0), answer + "</s>");
    EXPECT_EQ(data.report.files[0].json_texts, 0) << answer;
  }
  const std::string chat = list(kQuestion + "," + kGood);
  const LoadedData written =
      load("{\"prompt\": \"Write a chat.\", \"completion\": " + quoted(chat) + "}");
  EXPECT_EQ(learned(written, 0), chat + "</s>");
  EXPECT_EQ(written.report.files[0].json_texts, 1);
  EXPECT_NE(written.report.warnings().at(0).find("1 rows hold messages as JSON text"),
            std::string::npos);
  options_.data.format = DataSection::Format::kText;
  const LoadedData text = load("{\"text\": " + quoted(chat) + "}");
  EXPECT_EQ(learned(text, 0), chat.substr(1) + "</s>");
  EXPECT_EQ(text.report.files[0].json_texts, 1);
}

// Goal: what is neither a text nor messages is a bad row that says what to write.
TEST_F(MessageTexts, OfOtherKindsAreRefusedWithWhatToDo) {
  const std::string python = quoted("[{'role': 'user', 'content': 'q'}]");
  const std::vector<std::pair<std::string, std::string>> kRows = {
      {"{\"chosen\": " + python + ", \"rejected\": " + python + "}",
       "chosen: holds a Python literal; write JSON"},
      {"{\"prompt\": " + python + ", \"completion\": " + python + "}",
       "completion: holds a Python literal; write JSON"},
      {"{\"messages\": " + python + "}", "messages: holds a Python literal; write JSON"},
      {"{\"text\": " + python + "}", "text: holds a Python literal; write JSON"},
      {"{\"messages\": \"[{\"}", "messages: the string is no JSON: "},
      {R"({"chosen": ["a", "b"], "rejected": ["c"]})",
       "chosen: a list of texts is not read; give one text, or messages"},
      {R"({"prompt": "q", "chosen": {"text": "a"}, "rejected": {"text": "b"}})",
       "chosen: expected a text or messages, found an object with text"},
      {R"({"prompt": ["q"], "completion": ["a"]})", "prompt: a list of texts is not read"},
      {"{\"prompt\": \"q\", \"completion\": " + list(kGood) + "}",
       "completion: messages, but prompt is a text; both must be"},
      {R"({"train": [{"text": "a"}]})",
       "the rows lie in its member \"train\": write them so once: jq -c '.train[]' FILE"},
      {"[" + list(kQuestion + "," + kGood) + "]",
       "the row is a list, but a row is an object; a list of messages is a row as"},
      {kQuestion, "this is one message: a row has its messages in a list"},
      {"{\"chosen\": " + quoted("{\"messages\": " + list(kGood) + ", \"tools\": []}") + "}",
       "chosen: has members beside its messages, found messages, tools"}};
  for (const auto& [row, reason] : kRows) {
    EXPECT_NE(refusal(row).find(reason), std::string::npos) << row << "\n" << refusal(row);
  }
}

// Goal: calls of tools are read from JSON text and from the member of older files; a template that
// fails for what a call lacks says what that is.
TEST_F(MessageTexts, OfCallsAreReadOrNamed) {
  const ChatTemplate tells = ChatTemplate::from_text(
      "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for call in m.tool_calls or [] "
      "%}"
      "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "tells");
  options_.chat = &tells;
  const auto row = [](const std::string& answer) {
    return "{\"messages\": [" + kQuestion + ", {\"role\": \"assistant\", \"content\": null, " +
           answer + "}]}";
  };
  const std::string call = R"([{"function": {"name": "f", "arguments": {"x": 1}}}])";
  const std::vector<Ids> expected = documents(row("\"tool_calls\": " + call));
  EXPECT_EQ(documents(row("\"tool_calls\": " + quoted(call))), expected);
  EXPECT_EQ(documents(row(R"("function_call": {"name": "f", "arguments": "{\"x\": 1}"})")),
            expected);
  EXPECT_TRUE(report_.unread.empty());
  const std::string absent = refusal(row(R"("tool_calls": [{"function": {"name": "f"}}])"));
  EXPECT_NE(absent.find("; messages[1].tool_calls[0].function has no arguments: write {}"),
            std::string::npos)
      << absent;
  const std::string flat = refusal(row(R"("tool_calls": [{"name": "f", "arguments": {}}])"));
  EXPECT_NE(flat.find("; messages[1].tool_calls[0] has no member \"function\""), std::string::npos)
      << flat;
}

}  // namespace
}  // namespace longshore
