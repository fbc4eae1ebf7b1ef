#include "text/chat_encoder.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr const char* kRemedy =
    "; mark the answers in the template with {% generation %} and {% endgeneration %} and give it "
    "with data.chat_template, or set data.mask to \"last\" or \"all\"";

std::string role_of(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && role->is_string() ? role->get<std::string>() : "";
}

// OpenAI's mark of messages that are there to be read only.
bool has_no_weight(const Json& message) {
  const auto weight = message.find("weight");
  return weight != message.end() && weight->is_number() && weight->get<double>() == 0.0;
}

// All the beginnings of one conversation that are rendered to find its answers: a few seconds.
constexpr size_t kMaxBeginnings = size_t{256} << 20;

struct Answers {
  std::vector<size_t> all;      // indices of the assistant's messages
  std::vector<size_t> trained;  // those that `mask` names, in order, as places in `all`
};

Answers find_answers(const Json& messages, ChatMask mask) {
  Answers answers;
  size_t first_of_completion = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = role_of(messages[i]);
    if (role == "assistant") answers.all.push_back(i);
    if (role != "assistant" && role != "tool") first_of_completion = answers.all.size();
  }
  if (answers.all.empty()) throw ChatProblem("messages: none of them is the assistant's");
  size_t first = 0;
  if (mask == ChatMask::kCompletion) first = first_of_completion;
  if (mask == ChatMask::kLast) first = answers.all.size() - 1;
  for (size_t k = first; k < answers.all.size(); ++k) {
    if (!has_no_weight(messages[answers.all[k]])) answers.trained.push_back(k);
  }
  return answers;
}

bool overlaps(const TextSpan& token, const TextSpan& span) {
  if (token.begin == token.end) return token.begin >= span.begin && token.begin < span.end;
  return token.begin < span.end && token.end > span.begin;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

Json first_messages(const Json& messages, size_t count) {
  Json first = Json::array();
  for (size_t i = 0; i < count; ++i) first.push_back(messages[i]);
  return first;
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat)
    : tokenizer_(tokenizer), chat_(chat) {
  if (tokenizer->eos()) eos_text_ = tokenizer->token_of(*tokenizer->eos()).value_or("");
}

std::vector<TextSpan> ChatEncoder::spans_by_prefix(const Json& messages,
                                                   const ChatVariables& variables,
                                                   const std::string& text,
                                                   const std::vector<size_t>& assistants) const {
  std::vector<TextSpan> spans;
  size_t rendered = 0;
  for (const size_t i : assistants) {
    const std::string place = "messages[" + std::to_string(i) + "]: ";
    ChatVariables asking = variables;
    asking.add_generation_prompt = true;
    const std::string before = chat_->render(first_messages(messages, i), asking).text;
    const bool last = i + 1 == messages.size();
    std::string after =
        last ? text : chat_->render(first_messages(messages, i + 1), variables).text;
    // Some templates end every text with eos, however many messages it has.
    if (!text.starts_with(after) && !eos_text_.empty() && after.ends_with(eos_text_)) {
      after.resize(after.size() - eos_text_.size());
    }
    if (!text.starts_with(after)) {
      throw ChatProblem(place +
                        "the chat template writes this answer otherwise when more messages follow, "
                        "so that what the model should learn cannot be told from the rest" +
                        kRemedy);
    }
    if (!after.starts_with(before)) {
      throw ChatProblem(place +
                        "the chat template asks for an answer with other words than it puts before "
                        "this one, so that its beginning cannot be found" +
                        kRemedy);
    }
    spans.push_back({before.size(), after.size()});
    // A message costs about as much as 250 bytes, whatever it holds.
    rendered += before.size() + after.size() + 500 * i;
    if (rendered > kMaxBeginnings) {
      throw ChatProblem(
          "messages: " + std::to_string(assistants.size()) +
          " answers in so long a conversation: the time to find them in its growing beginnings "
          "grows with the square of their number; mark the answers in the template with "
          "{% generation %} and {% endgeneration %}, or break the conversation up");
    }
  }
  return spans;
}

void ChatEncoder::mark(const EncodedText& encoded, TextSpan span, bool end_at_special,
                       EncodedChat& chat) const {
  const auto begins_before = [](const TextSpan& token, size_t end) { return token.begin < end; };
  const auto ends_after = [](size_t begin, const TextSpan& token) { return begin < token.end; };
  // Tokens lie in the order of the text.
  const auto first =
      std::upper_bound(encoded.spans.begin(), encoded.spans.end(), span.begin, ends_after);
  auto last = std::lower_bound(first, encoded.spans.end(), span.end, begins_before);
  if (end_at_special) {
    // A line break behind the end of the turn is the template's, not the model's.
    for (auto token = last; token != first;) {
      --token;
      const auto index = static_cast<size_t>(token - encoded.spans.begin());
      if (tokenizer_->is_special(encoded.ids[index])) {
        last = token + 1;
        break;
      }
      const size_t end = std::min(token->end, chat.text.size());
      const size_t begin = std::min(token->begin, end);
      if (!is_blank(std::string_view(chat.text).substr(begin, end - begin))) break;
    }
  }
  for (auto token = first; token < last; ++token) {
    if (!overlaps(*token, span)) continue;
    chat.trained[static_cast<size_t>(token - encoded.spans.begin())] = true;
  }
}

EncodedChat ChatEncoder::encode(const Json& messages, const ChatVariables& variables,
                                ChatMask mask) const {
  RenderedChat rendered = chat_->render(messages, variables);
  EncodedText encoded = tokenizer_->encode_with_spans(rendered.text, SpecialTokens::kNone);
  EncodedChat chat;
  chat.text = std::move(rendered.text);
  chat.trained.assign(encoded.ids.size(), mask == ChatMask::kAll);
  if (mask != ChatMask::kAll) {
    const Answers answers = find_answers(messages, mask);
    const bool marked = chat_->has_generation(!variables.tools.is_null());
    std::vector<TextSpan> spans;
    if (marked && rendered.generated.size() == answers.all.size()) {
      for (const size_t k : answers.trained) spans.push_back(rendered.generated[k]);
    } else if (marked && mask == ChatMask::kAssistant &&
               answers.trained.size() == answers.all.size()) {
      spans = rendered.generated;
    } else if (marked) {
      throw ChatProblem("the chat template marks " + std::to_string(rendered.generated.size()) +
                        " generated parts for " + std::to_string(answers.all.size()) +
                        " answers; set data.mask to \"assistant\" or \"all\"");
    } else {
      std::vector<size_t> assistants;
      for (const size_t k : answers.trained) assistants.push_back(answers.all[k]);
      spans = spans_by_prefix(messages, variables, chat.text, assistants);
    }
    for (const TextSpan& span : spans) mark(encoded, span, !marked, chat);
  }
  chat.ids = std::move(encoded.ids);
  return chat;
}

}  // namespace longshore
