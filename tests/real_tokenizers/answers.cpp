// text_answers DIRECTORY [TEMPLATE]: a program for scripts/dev/real_tokenizers and
// scripts/dev/chat_templates. TEMPLATE is a file in place of the directory's chat template. The
// program reads one JSON object per line, a text ({"text": ...}) or a conversation ({"messages":
// ..., "tools": ..., "arguments": ..., "add_generation_prompt": ...}), and writes one per line: its
// tokens, or the rendered text and its tokens, or {"refused": why}. For a conversation with
// "train": true it writes the samples that are trained: the text of each, and its trained parts.
#include <cstdio>
#include <iostream>

#include "base/json.h"
#include "text/chat_encoder.h"

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

std::vector<std::string> trained_parts(const Tokenizer& tokenizer, const EncodedChat& encoded) {
  std::vector<std::string> parts;
  std::vector<TokenId> part;
  for (size_t t = 0; t <= encoded.ids.size(); ++t) {
    if (t < encoded.ids.size() && encoded.trained[t]) {
      part.push_back(encoded.ids[t]);
    } else if (!part.empty()) {
      parts.push_back(tokenizer.decode(part, /*skip_special=*/false));
      part.clear();
    }
  }
  return parts;
}

Json answer_training(const Tokenizer& tokenizer, const ChatTemplate& chat, const Json& asked) {
  ChatVariables variables;
  if (asked.contains("tools")) variables.tools = asked["tools"];
  variables.arguments = asked.value("arguments", Json::object());
  ChatNotes notes;
  const ChatEncoder encoder(&tokenizer, &chat);
  Json samples = Json::array();
  for (const EncodedChat& encoded :
       encoder.encode(asked["messages"], variables, ChatMask::kAssistant, &notes)) {
    samples.push_back({{"text", encoded.text}, {"trained", trained_parts(tokenizer, encoded)}});
  }
  return {{"samples", samples}, {"emptied", notes.emptied}, {"unwritten_texts", notes.texts}};
}

Json answer(const Tokenizer& tokenizer, const std::optional<ChatTemplate>& chat,
            const std::string& line) {
  const Json asked = parse_json(line, {}, "a line");
  try {
    if (asked.contains("text")) {
      return answer_text(tokenizer, asked["text"].get_ref<const std::string&>());
    }
    if (!chat) return {{"refused", "no chat template"}};
    const bool train = asked.value("train", false);
    return train ? answer_training(tokenizer, *chat, asked) : answer_chat(tokenizer, *chat, asked);
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

void answer_all(const std::string& directory, const std::string& file) {
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const std::optional<ChatTemplate> chat = ChatTemplate::load(directory, tokenizer, {.file = file});
  std::cout << names_of(tokenizer).dump() << "\n";
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(tokenizer, chat, line).dump() << "\n";
  }
}

}  // namespace
}  // namespace longshore

int main(int count, char** arguments) {
  if (count < 2 || count > 3) {
    std::fputs("usage: text_answers DIRECTORY [TEMPLATE] <questions.jsonl\n", stderr);
    return 2;
  }
  try {
    longshore::answer_all(arguments[1], count > 2 ? arguments[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
