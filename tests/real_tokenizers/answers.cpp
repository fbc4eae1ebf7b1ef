// text_answers DIRECTORY: a program for scripts/dev/real_tokenizers. It reads one JSON object per
// line, a text ({"text": ...}) or a conversation ({"messages": ..., "tools": ..., "arguments": ...,
// "add_generation_prompt": ...}), and writes one per line: its tokens, or the rendered text and its
// tokens, or {"refused": why}.
#include <cstdio>
#include <iostream>

#include "base/json.h"
#include "text/chat_template.h"

namespace longshore {
namespace {

Json answer_text(const Tokenizer& tokenizer, const std::string& text) {
  const EncodedText plain = tokenizer.encode_with_spans(text, SpecialTokens::kNone);
  const std::vector<TokenId> special = tokenizer.encode(text, SpecialTokens::kAdd);
  Json spans = Json::array();
  for (const TextSpan& span : plain.spans) spans.push_back({span.begin, span.end});
  return {{"ids", plain.ids},
          {"special", special},
          {"spans", spans},
          {"decoded", tokenizer.decode(special, /*skip_special=*/true)},
          {"decoded_all", tokenizer.decode(special, /*skip_special=*/false)}};
}

Json answer_chat(const Tokenizer& tokenizer, const ChatTemplate& chat, const Json& asked) {
  ChatVariables variables;
  if (asked.contains("tools")) variables.tools = asked["tools"];
  variables.add_generation_prompt = asked.value("add_generation_prompt", false);
  variables.arguments = asked.value("arguments", Json::object());
  const std::string text = chat.render(asked["messages"], variables).text;
  return {{"rendered", text}, {"ids", tokenizer.encode(text, SpecialTokens::kNone)}};
}

Json answer(const Tokenizer& tokenizer, const std::optional<ChatTemplate>& chat,
            const std::string& line) {
  const Json asked = parse_json(line, {}, "a line");
  try {
    if (asked.contains("text")) {
      return answer_text(tokenizer, asked["text"].get_ref<const std::string&>());
    }
    if (!chat) return {{"refused", "no chat template"}};
    return answer_chat(tokenizer, *chat, asked);
  } catch (const std::exception& error) {
    return {{"refused", error.what()}};
  }
}

Json names_of(const Tokenizer& tokenizer) {
  const auto number = [](std::optional<TokenId> id) { return id ? Json(*id) : Json(nullptr); };
  return {{"vocabulary_size", tokenizer.vocabulary_size()},
          {"bos", number(tokenizer.bos())},
          {"eos", number(tokenizer.eos())},
          {"pad", number(tokenizer.pad())}};
}

void answer_all(const std::string& directory) {
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const std::optional<ChatTemplate> chat = ChatTemplate::load(directory, tokenizer, {});
  std::cout << names_of(tokenizer).dump() << "\n";
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(tokenizer, chat, line).dump() << "\n";
  }
}

}  // namespace
}  // namespace longshore

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("usage: text_answers DIRECTORY <questions.jsonl\n", stderr);
    return 2;
  }
  try {
    longshore::answer_all(arguments[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
