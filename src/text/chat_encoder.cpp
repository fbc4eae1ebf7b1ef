#include "text/chat_encoder.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

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

bool is_inside_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

std::string_view trimmed(std::string_view text) {
  if (is_blank(text)) return {};
  const size_t first = text.find_first_not_of(" \t\r\n");
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

std::string_view text_member(const Json& message, const char* name) {
  const auto member = message.find(name);
  if (member == message.end() || !member->is_string()) return {};
  return member->get_ref<const std::string&>();
}

constexpr std::string_view kOpenThought = "<think>";
constexpr std::string_view kCloseThought = "</think>";

// What the model thought before its answer, as the message says it.
std::string_view thought_of(const Json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (const std::string_view thought = text_member(message, name); !thought.empty()) {
      return trimmed(thought);
    }
  }
  const std::string_view content = text_member(message, "content");
  const size_t close = content.find(kCloseThought);
  if (close == std::string_view::npos) return {};
  const size_t open = content.substr(0, close).find(kOpenThought);
  const size_t begin = open == std::string_view::npos ? 0 : open + kOpenThought.size();
  return trimmed(content.substr(begin, close - begin));
}

// Where the prompt opens a thought and the template leaves the thought out of what was `written`:
// the thought, or an empty one, and its end.
std::string thought_to_close(std::string_view prompt_end, std::string_view written,
                             const Json& message) {
  const size_t open = prompt_end.rfind(kOpenThought);
  if (open == std::string_view::npos) return {};
  if (prompt_end.substr(open).find(kCloseThought) != std::string_view::npos) return {};
  if (written.find(kCloseThought) != std::string_view::npos) return {};
  const std::string lead = prompt_end.ends_with('\n') ? "" : "\n";
  return lead + std::string(thought_of(message)) + "\n" + std::string(kCloseThought) + "\n\n";
}

// Where the content of a message is in the text that ends with it; npos: not there.
size_t find_content(std::string_view text, const Json& message) {
  const std::string_view content = trimmed(text_member(message, "content"));
  return content.empty() ? std::string_view::npos : text.rfind(content);
}

// Where an answer begins that the template does not ask for.
size_t begin_of_content(std::string_view text, const Json& message, size_t index) {
  const size_t at = find_content(text, message);
  if (at != std::string_view::npos) return at;
  throw ChatProblem("messages[" + std::to_string(index) +
                    "]: the chat template does not ask for this answer, so that its beginning "
                    "cannot be found; give it the weight 0, or set data.mask to \"all\"");
}

// The length of the longest end of `text` that `other` begins with (Knuth, Morris, Pratt).
size_t longest_overlap(std::string_view text, std::string_view other) {
  std::vector<size_t> borders(other.size() + 1, 0);  // of each beginning of `other`
  for (size_t i = 1, border = 0; i < other.size(); ++i) {
    while (border > 0 && other[i] != other[border]) border = borders[border];
    if (other[i] == other[border]) ++border;
    borders[i + 1] = border;
  }
  size_t overlap = 0;
  for (const char letter : text) {
    if (overlap == other.size()) overlap = borders[overlap];
    while (overlap > 0 && letter != other[overlap]) overlap = borders[overlap];
    if (overlap < other.size() && letter == other[overlap]) ++overlap;
  }
  return overlap;
}

// How an answer is opened in a text that was asked for with other words.
struct Opening {
  size_t end = 0;              // in the text: behind what it has of the question's last words
  std::string_view unwritten;  // the last words of the question that it has not
};

// What is shorter may be there by chance.
constexpr size_t kLeastOverlap = 4;

// More than this before an opening need not be compared.
constexpr size_t kMostBefore = 256;

// Where in `text` the opening stands behind most of what it is behind in `asked`: an answer may
// have it once more, between a thought and what is said. npos: nowhere.
size_t best_opening(std::string_view asked, std::string_view opening, std::string_view text) {
  size_t best = std::string_view::npos, most = 0;
  if (opening.empty()) return best;
  asked.remove_suffix(opening.size());
  asked = asked.substr(asked.size() - std::min(asked.size(), kMostBefore));
  for (size_t at = text.find(opening); at != std::string_view::npos;
       at = text.find(opening, at + 1)) {
    const std::string_view before = text.substr(0, at);
    const auto differ =
        std::mismatch(asked.rbegin(), asked.rend(), before.rbegin(), before.rend()).first;
    const auto agreed = static_cast<size_t>(differ - asked.rbegin());
    if (agreed >= most) best = at, most = agreed;
  }
  return best;
}

// `asked` ends with `opening`, what the template adds to ask for an answer; `text` ends with the
// answer.
Opening find_opening(std::string_view asked, std::string_view opening, std::string_view text,
                     const Json& message) {
  auto [tail, rest] = std::mismatch(asked.begin(), asked.end(), text.begin(), text.end());
  while (rest != text.begin() && is_inside_character(*rest)) --rest, --tail;
  auto common = static_cast<size_t>(tail - asked.begin());
  // A mark that the question opens is not begun by an answer that begins with the same letter.
  const size_t mark = asked.rfind(kOpenThought);
  if (mark < common && common < mark + kOpenThought.size()) common = mark;
  if (!opening.empty() && common + opening.size() >= asked.size()) {
    return {common, asked.substr(common)};
  }
  // The question has words that are left out of the text: Mistral's system message.
  const size_t overlap = longest_overlap(asked.substr(common), text.substr(common));
  if (overlap >= std::max(opening.size(), kLeastOverlap)) return {common + overlap, {}};
  const size_t begin = best_opening(asked, opening, text);
  if (begin != std::string_view::npos) return {begin + opening.size(), {}};
  for (size_t count = opening.size(); 2 * count > opening.size(); --count) {
    const size_t at = text.rfind(opening.substr(0, count));
    if (at != std::string_view::npos) return {at + count, opening.substr(count)};
  }
  const size_t content = find_content(text, message);
  return {content == std::string_view::npos ? common : content, {}};
}

// Contents that are lists of parts as one text, for templates that read only texts.
Json with_joined_parts(Json messages) {
  for (Json& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    std::string text;
    for (const Json& part : *content) text += text_member(part, "text");
    *content = std::move(text);
  }
  return messages;
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

// Some templates end every text with eos, however many messages it has.
std::string_view ChatEncoder::open_end(std::string_view text, std::string_view longer) const {
  if (!longer.starts_with(text) && !eos_text_.empty() && text.ends_with(eos_text_)) {
    text.remove_suffix(eos_text_.size());
  }
  return text;
}

bool ChatEncoder::extend(Sample& run, Sample& next) const {
  const size_t kept = open_end(run.text, next.text).size();
  if (next.text.compare(0, kept, run.text, 0, kept) != 0) return false;
  if (!next.spans.empty() && next.spans.front().begin < kept) return false;
  run.spans.back().end = std::min(run.spans.back().end, kept);
  run.text = std::move(next.text);
  run.spans.insert(run.spans.end(), next.spans.begin(), next.spans.end());
  return true;
}

// What the template adds to ask for the answer: the end of `asked`.
std::string_view ChatEncoder::opening_of(const Json& messages, size_t answer,
                                         const ChatVariables& variables,
                                         std::string_view asked) const {
  try {
    const std::string read = chat_->render(first_messages(messages, answer), variables).text;
    const std::string_view base = open_end(read, asked);
    return asked.starts_with(base) ? asked.substr(base.size()) : std::string_view();
  } catch (const ChatProblem&) {
    return {};
  }
}

ChatEncoder::Sample ChatEncoder::asked_and_answered(const Json& messages, size_t answer,
                                                    const ChatVariables& variables,
                                                    std::string after) const {
  const auto behind = [&after](size_t begin) {
    const size_t end = after.size();
    return Sample{std::move(after), {{begin, end}}};
  };
  ChatVariables asking = variables;
  asking.add_generation_prompt = true;
  std::string asked;
  try {
    asked = chat_->render(first_messages(messages, answer), asking).text;
  } catch (const ChatProblem&) {
    // Nobody asks for an answer there; it may be the first message.
    return behind(begin_of_content(after, messages[answer], answer));
  }
  const std::string_view before = open_end(asked, after);
  if (after.starts_with(before)) return behind(before.size());
  if (answer == 0) return behind(begin_of_content(after, messages[answer], answer));
  // The template asks for an answer with other words than it puts before this one: with a <think>
  // that the answer goes on from, for example, or with an earlier answer as it was.
  const std::string_view opening = opening_of(messages, answer, variables, before);
  const Opening found = find_opening(before, opening, after, messages[answer]);
  const std::string_view written = std::string_view(after).substr(found.end);
  std::string text(before);
  const std::string thought = thought_to_close(found.unwritten, written, messages[answer]);
  text += thought;
  // Its end has the line breaks that stood between the thought and the answer.
  const size_t lines = thought.empty() ? 0 : written.find_first_not_of('\n');
  text += written.substr(std::min(lines, written.size()));
  const size_t end = text.size();
  return {std::move(text), {{before.size(), end}}};
}

std::vector<ChatEncoder::Sample> ChatEncoder::samples_of(const Json& messages,
                                                         const ChatVariables& variables,
                                                         const std::string& text,
                                                         const std::vector<size_t>& answers) const {
  const std::string& opening = chat_->unasked_opening();
  std::vector<Sample> samples;
  size_t rendered = 0;
  for (const size_t i : answers) {
    const bool last = i + 1 == messages.size();
    std::string after =
        last ? text : chat_->render(first_messages(messages, i + 1), variables).text;
    if (after.ends_with(opening)) after.resize(after.size() - opening.size());
    // A message costs about as much as 250 bytes, whatever it holds.
    rendered += 2 * after.size() + 500 * i;
    if (rendered > kMaxBeginnings) {
      throw ChatProblem(
          "messages: " + std::to_string(answers.size()) +
          " answers in so long a conversation: the time to find them in its growing beginnings "
          "grows with the square of their number; mark the answers in the template with "
          "{% generation %} and {% endgeneration %}, or break the conversation up");
    }
    Sample next = asked_and_answered(messages, i, variables, std::move(after));
    if (samples.empty() || !extend(samples.back(), next)) samples.push_back(std::move(next));
  }
  // What follows the last answer is read, not trained.
  Sample whole{text, {}};
  if (!samples.empty()) extend(samples.back(), whole);
  return samples;
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

EncodedChat ChatEncoder::encode_sample(Sample sample, bool end_at_special) const {
  EncodedText encoded = tokenizer_->encode_with_spans(sample.text, SpecialTokens::kNone);
  EncodedChat chat;
  chat.text = std::move(sample.text);
  chat.trained.assign(encoded.ids.size(), false);
  for (const TextSpan& span : sample.spans) mark(encoded, span, end_at_special, chat);
  chat.ids = std::move(encoded.ids);
  return chat;
}

std::vector<EncodedChat> ChatEncoder::encode(const Json& given, const ChatVariables& variables,
                                             ChatMask mask) const {
  const bool tools = !variables.tools.is_null();
  const Json messages = chat_->reads_parts(tools) ? given : with_joined_parts(given);
  RenderedChat rendered = chat_->render(messages, variables);
  if (mask == ChatMask::kAll) {
    const size_t end = rendered.text.size();
    std::vector<EncodedChat> all;
    all.push_back(encode_sample({std::move(rendered.text), {{0, end}}}, false));
    all.front().trained.assign(all.front().ids.size(), true);
    return all;
  }
  const Answers answers = find_answers(messages, mask);
  const std::vector<TextSpan>& marked = rendered.generated;
  const bool each = answers.trained.size() == answers.all.size();
  std::vector<Sample> samples;
  bool end_at_special = false;
  if (!marked.empty() && each && mask == ChatMask::kAssistant) {
    samples.push_back({std::move(rendered.text), marked});
  } else if (!marked.empty() && marked.size() == answers.all.size()) {
    samples.push_back({std::move(rendered.text), {}});
    for (const size_t k : answers.trained) samples.back().spans.push_back(marked[k]);
  } else {
    std::vector<size_t> trained;
    for (const size_t k : answers.trained) trained.push_back(answers.all[k]);
    samples = samples_of(messages, variables, rendered.text, trained);
    if (samples.empty()) samples.push_back({std::move(rendered.text), {}});
    end_at_special = true;
  }
  std::vector<EncodedChat> chats;
  for (Sample& sample : samples) {
    chats.push_back(encode_sample(std::move(sample), end_at_special));
  }
  return chats;
}

}  // namespace longshore
