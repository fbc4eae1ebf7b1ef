#include "text/chat_encoder.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/texts.h"
#include "text/answer_finder.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

// OpenAI's format excludes a message from training with "weight": 0.
float weight_of(const Json& message) {
  const auto weight = message.find("weight");
  return weight != message.end() && weight->is_number() ? weight->get<float>() : 1.0f;
}

// Returns the weight of each message; empty if those of all answers are 0 or 1.
std::vector<float> weights_of(const Json& messages) {
  std::vector<float> weights;
  for (const Json& message : messages) {
    weights.push_back(member_text(message, "role") == "assistant" ? weight_of(message) : 1.0f);
  }
  const bool plain =
      std::ranges::all_of(weights, [](float weight) { return weight == 0.0f || weight == 1.0f; });
  return plain ? std::vector<float>() : weights;
}

struct Answers {
  std::vector<size_t> all;      // indices of the assistant's messages
  std::vector<size_t> trained;  // indices into `all` of those that `mask` selects, ascending
};

Answers find_answers(const Json& messages, ChatMask mask) {
  Answers answers;
  size_t first_of_completion = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = member_text(messages[i], "role");
    if (role == "assistant") answers.all.push_back(i);
    if (role != "assistant" && role != "tool") first_of_completion = answers.all.size();
  }
  if (answers.all.empty()) throw ChatProblem("messages: none of them is the assistant's");
  size_t first = 0;
  if (mask == ChatMask::kCompletion) first = first_of_completion;
  if (mask == ChatMask::kLast) first = answers.all.size() - 1;
  for (size_t k = first; k < answers.all.size(); ++k) {
    if (weight_of(messages[answers.all[k]]) != 0.0f) answers.trained.push_back(k);
  }
  return answers;
}

bool overlaps(const TextSpan& token, const TextSpan& span) {
  if (token.begin == token.end) return token.begin >= span.begin && token.begin < span.end;
  return token.begin < span.end && token.end > span.begin;
}

// Joins contents that are lists of parts.
Json with_joined_parts(Json messages) {
  for (Json& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    std::string text;
    for (const Json& part : *content) text += member_text(part, "text");
    *content = std::move(text);
  }
  return messages;
}

}  // namespace

Json messages_for(const ChatTemplate& chat, Json messages, bool with_tools) {
  return chat.reads_parts(with_tools) ? std::move(messages)
                                      : with_joined_parts(std::move(messages));
}

ChatEncoder::ChatEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat, bool broken)
    : tokenizer_(tokenizer), chat_(chat), broken_(broken) {
  if (tokenizer->eos()) eos_text_ = tokenizer->token_of(*tokenizer->eos()).value_or("");
}

void ChatEncoder::mark(const EncodedText& encoded, TextSpan span, bool end_at_special, float weight,
                       EncodedChat& chat) const {
  const auto begins_before = [](const TextSpan& token, size_t end) { return token.begin < end; };
  const auto ends_after = [](size_t begin, const TextSpan& token) { return begin < token.end; };
  // Tokens are in the order of the text.
  const auto first =
      std::upper_bound(encoded.spans.begin(), encoded.spans.end(), span.begin, ends_after);
  auto last = std::lower_bound(first, encoded.spans.end(), span.end, begins_before);
  if (end_at_special) {
    // A line break after the end of the turn comes from the template, not from the model.
    for (auto token = last; token != first;) {
      --token;
      const auto index = static_cast<size_t>(token - encoded.spans.begin());
      if (tokenizer_->is_special(encoded.ids[index])) {
        last = token + 1;
        break;
      }
      const size_t end = std::min(token->end, chat.text.size());
      const size_t begin = std::min(token->begin, end);
      if (!trimmed(std::string_view(chat.text).substr(begin, end - begin)).empty()) break;
    }
  }
  for (auto token = first; token < last; ++token) {
    if (!overlaps(*token, span)) continue;
    const auto index = static_cast<size_t>(token - encoded.spans.begin());
    chat.trained[index] = true;
    if (!chat.weights.empty()) chat.weights[index] = weight;
  }
}

EncodedChat ChatEncoder::encode_sample(ChatSample sample, bool end_at_special,
                                       const std::vector<float>& weights) const {
  TextWithoutBreaks plain{std::move(sample.text), {}};
  if (broken_) {
    plain = without_breaks(std::move(plain.text));
    for (AnswerSpan& span : sample.spans) {
      span.text = {plain.offset(span.text.begin), plain.offset(span.text.end)};
    }
  }
  EncodedText encoded = plain.encode(*tokenizer_, SpecialTokens::kNone);
  EncodedChat chat;
  chat.text = std::move(plain.text);
  chat.trained.assign(encoded.ids.size(), false);
  if (!weights.empty()) chat.weights.assign(encoded.ids.size(), 1.0f);
  for (const AnswerSpan& span : sample.spans) {
    mark(encoded, span.text, end_at_special, weights.empty() ? 1.0f : weights.at(span.message),
         chat);
  }
  chat.ids = std::move(encoded.ids);
  return chat;
}

std::vector<EncodedChat> ChatEncoder::encode(const Json& given, const ChatVariables& variables,
                                             ChatMask mask, ChatNotes* notes) const {
  const Json messages = messages_for(*chat_, given, !variables.tools.is_null());
  RenderedChat rendered = chat_->render(messages, variables);
  AnswerFinder finder(chat_, eos_text_, messages, std::move(rendered.text), &variables);
  const auto note = [&](const std::vector<size_t>& trained) {
    const ChatNotes found = finder.notes(trained);
    if (notes != nullptr) *notes = found;
  };
  std::vector<EncodedChat> chats;
  if (mask == ChatMask::kAll) {
    chats.push_back(encode_sample(finder.undivided(), false, {}));
    chats.front().trained.assign(chats.front().ids.size(), true);
    note({});
    return chats;
  }
  const Answers answers = find_answers(messages, mask);
  std::vector<size_t> trained;
  for (const size_t k : answers.trained) trained.push_back(answers.all[k]);
  const std::vector<TextSpan>& marked = rendered.generated;
  const std::vector<float> weights = weights_of(messages);
  const bool each = weights.empty() && answers.trained.size() == answers.all.size();
  std::vector<ChatSample> samples;
  bool end_at_special = false;
  if (!marked.empty() && each && mask == ChatMask::kAssistant) {
    std::vector<AnswerSpan> spans;
    for (const TextSpan& span : marked) spans.push_back({span});
    samples.push_back(finder.generated(std::move(spans)));
  } else if (!marked.empty() && marked.size() == answers.all.size()) {
    std::vector<AnswerSpan> spans;
    for (const size_t k : answers.trained) spans.push_back({marked[k], answers.all[k]});
    samples.push_back(finder.generated(std::move(spans)));
  } else {
    samples = finder.find(trained);
    end_at_special = true;
  }
  note(trained);
  for (ChatSample& sample : samples) {
    chats.push_back(encode_sample(std::move(sample), end_at_special, weights));
  }
  return chats;
}

}  // namespace longshore
