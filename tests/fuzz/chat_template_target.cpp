// A chat template in Jinja: what it renders and what is trained of it.
#include "tests/fuzz/fuzz_targets.h"
#include "text/chat_encoder.h"

namespace longshore {
namespace {

const Json& conversation() {
  static const Json messages =
      parse_json(R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Add 2, 3"},)"
                 R"({"role":"assistant","content":"","tool_calls":[{"type":"function","function":)"
                 R"({"name":"add","arguments":{"a":2,"b":3}}}]},{"role":"tool","content":"5"},)"
                 R"({"role":"assistant","content":"5","reasoning_content":"2 + 3"}])",
                 {}, "messages");
  return messages;
}

}  // namespace

bool fuzz_chat_template(std::string_view bytes) {
  try {
    const ChatTemplate chat = ChatTemplate::from_text(std::string(bytes), byte_level_tokenizer(),
                                                      "2024-07-26", "template");
    ChatVariables variables;
    variables.tools = Json::array({{{"type", "function"}, {"function", {{"name", "add"}}}}});
    const RenderedChat rendered = chat.render(conversation(), variables);
    for (const TextSpan& span : rendered.generated) {
      LONGSHORE_CHECK(span.begin <= span.end && span.end <= rendered.text.size());
    }
    const ChatEncoder encoder(&byte_level_tokenizer(), &chat);
    for (const EncodedChat& sample :
         encoder.encode(conversation(), variables, ChatMask::kAssistant)) {
      LONGSHORE_CHECK(sample.ids.size() == sample.trained.size());
    }
  } catch (const ChatProblem&) {
    return false;
  }
  return true;
}

}  // namespace longshore
