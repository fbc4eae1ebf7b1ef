#include "text/chat_marks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

namespace longshore {
namespace {

constexpr std::array kThoughtMembers = {"reasoning_content", "thinking", "reasoning"};
// These are the characters that Python's strip() removes; templates call it.
constexpr auto kBlanks = std::to_array<std::string_view>(
    {" ",      "\n",     "\t",     "\r",     "\x0B",   "\x0C",   "\x1C",   "\x1D",
     "\x1E",   "\x1F",   "\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002",
     "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200A",
     "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"});

// A mark is U+FDD8 or U+FDD9, followed by eight digits from U+FDE0 to U+FDEF. {% generation %}
// blocks use other noncharacters.
constexpr std::string_view kBegin = "\xEF\xB7\x98", kEnd = "\xEF\xB7\x99";
constexpr std::string_view kDigitHead = "\xEF\xB7";
constexpr unsigned kFirstDigit = 0xA0;
constexpr size_t kDigits = 8, kLetterBytes = 3;
constexpr size_t kMaxMessages = size_t{1} << 16, kMaxNumbers = size_t{1} << 12;

std::string mark_of(const PartName& name, bool end) {
  const size_t code =
      (name.message * kMaxNumbers + name.number) * 16 + static_cast<size_t>(name.part);
  std::string mark(end ? kEnd : kBegin);
  for (size_t digit = kDigits; digit-- > 0;) {
    mark += kDigitHead;
    mark += static_cast<char>(kFirstDigit + (code >> (4 * digit) & 15));
  }
  return mark;
}

// Reads the mark at offset `at`; returns false if it is damaged.
bool read_mark(std::string_view text, size_t at, PartMark& mark) {
  mark.end = text.substr(at).starts_with(kEnd);
  if (text.size() - at < (1 + kDigits) * kLetterBytes) return false;
  size_t code = 0;
  for (size_t digit = 1; digit <= kDigits; ++digit) {
    const std::string_view letter = text.substr(at + digit * kLetterBytes, kLetterBytes);
    const auto value = static_cast<unsigned char>(letter.back()) - kFirstDigit;
    if (!letter.starts_with(kDigitHead) || value > 15) return false;
    code = code * 16 + value;
  }
  mark.name = {code / 16 / kMaxNumbers, static_cast<ChatPart>(code % 16), code / 16 % kMaxNumbers};
  return true;
}

// Stretch: a range of a text, without the blanks at its ends. Its size is 0 if nothing is left.
struct Stretch {
  size_t begin = 0, size = 0;
};

// Returns the bytes of the blank that the text begins or ends with; 0 if there is none.
size_t blank_at(std::string_view text, bool begin) {
  for (const std::string_view letter : kBlanks) {
    if (begin ? text.starts_with(letter) : text.ends_with(letter)) return letter.size();
  }
  return 0;
}

Stretch trimmed(std::string_view text, size_t begin, size_t end) {
  std::string_view part = text.substr(begin, end - begin);
  while (const size_t size = blank_at(part, false)) part.remove_suffix(size);
  const size_t left = part.size();
  while (const size_t size = blank_at(part, true)) part.remove_prefix(size);
  return {begin + left - part.size(), part.size()};
}

// Splits a content into the thought before the answer (may be empty) and the answer.
std::pair<Stretch, Stretch> thought_and_answer(std::string_view content) {
  const size_t close = content.find(kCloseThought);
  if (close == std::string_view::npos) return {{}, trimmed(content, 0, content.size())};
  const size_t open = content.substr(0, close).find(kOpenThought);
  const size_t begin = open == std::string_view::npos ? 0 : open + kOpenThought.size();
  return {trimmed(content, begin, close),
          trimmed(content, close + kCloseThought.size(), content.size())};
}

std::string* text_member(Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto member = object.find(name);
  if (member == object.end() || !member->is_string()) return nullptr;
  return member->get_ptr<std::string*>();
}

// PartWalk: calls `use` for every part of a conversation, with its text and range in that text.
class PartWalk {
 public:
  using Use = std::function<void(const PartName&, std::string&, Stretch)>;
  PartWalk(MarkedRoles roles, Use use) : roles_(roles), use_(std::move(use)) {}

  void messages(Json& messages) const {
    for (size_t m = 0; m < std::min(messages.size(), kMaxMessages); ++m) {
      if (!messages[m].is_object()) continue;
      if (roles_ == MarkedRoles::kAll || is_assistant(messages[m])) message(messages[m], m);
    }
  }

  void tools(Json& tools) const {
    if (!tools.is_array() || roles_ != MarkedRoles::kAll) return;
    for (size_t t = 0; t < tools.size(); ++t) named({0, ChatPart::kTool, t}, tools[t]);
  }

 private:
  void message(Json& message, size_t index) const {
    for (const char* name : kThoughtMembers) {
      if (std::string* text = text_member(message, name)) {
        whole({index, ChatPart::kThought, 0}, *text);
      }
    }
    const auto content = message.find("content");
    if (content != message.end() && content->is_array()) {
      for (size_t i = 0; i < content->size(); ++i) {
        if (std::string* text = text_member((*content)[i], "text")) {
          whole({index, ChatPart::kContent, i}, *text);
        }
      }
    } else if (std::string* text = text_member(message, "content")) {
      is_assistant(message) ? answer(index, *text) : whole({index, ChatPart::kContent, 0}, *text);
    }
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) return;
    for (size_t c = 0; c < calls->size(); ++c) named({index, ChatPart::kCall, c}, (*calls)[c]);
  }

  // The content comes first: an edit of it does not move the thought before it.
  void answer(size_t index, std::string& text) const {
    const auto [thought, said] = thought_and_answer(text);
    use({index, ChatPart::kContent, 0}, text, said);
    use({index, ChatPart::kThought, 0}, text, thought);
  }

  // A call or a tool is marked at its name.
  void named(const PartName& name, Json& value) const {
    if (!value.is_object()) return;
    const auto function = value.find("function");
    Json& holder = function == value.end() ? value : *function;
    if (std::string* text = text_member(holder, "name")) whole(name, *text);
  }

  void whole(const PartName& name, std::string& text) const {
    use(name, text, trimmed(text, 0, text.size()));
  }

  void use(const PartName& name, std::string& text, Stretch stretch) const {
    if (stretch.size > 0 && name.number < kMaxNumbers) use_(name, text, stretch);
  }

  MarkedRoles roles_;
  Use use_;
};

void put_marks(const PartName& name, std::string& text, Stretch stretch) {
  text.insert(stretch.begin + stretch.size, mark_of(name, true));
  text.insert(stretch.begin, mark_of(name, false));
}

// Removes the marks from a text and returns them; nullopt if one is damaged.
std::optional<std::vector<PartMark>> take_marks(std::string_view marked, std::string& text) {
  std::vector<PartMark> marks;
  size_t done = 0;
  for (size_t at = marked.find(kDigitHead); at != std::string_view::npos;
       at = marked.find(kDigitHead, at)) {
    const std::string_view rest = marked.substr(at);
    if (!rest.starts_with(kBegin) && !rest.starts_with(kEnd)) {
      ++at;
      continue;
    }
    text += marked.substr(done, at - done);
    PartMark mark;
    if (!read_mark(marked, at, mark)) return std::nullopt;
    mark.at = text.size();
    marks.push_back(mark);
    done = at += (1 + kDigits) * kLetterBytes;
  }
  text += marked.substr(done);
  return marks;
}

}  // namespace

bool is_assistant(const Json& message) {
  return message.is_object() && message.value("role", Json()) == "assistant";
}

std::vector<PartName> parts_of(const Json& messages, const Json& tools) {
  std::vector<PartName> parts;
  const PartWalk walk(MarkedRoles::kAll, [&parts](const PartName& name, std::string&, Stretch) {
    parts.push_back(name);
  });
  Json copy = messages, tools_copy = tools;
  walk.messages(copy);
  walk.tools(tools_copy);
  std::ranges::sort(parts);
  parts.erase(std::ranges::unique(parts).begin(), parts.end());
  return parts;
}

std::optional<std::vector<PartMark>> find_parts(const ChatTemplate& chat, const Json& messages,
                                                const ChatVariables& variables,
                                                std::string_view plain, std::string_view behind,
                                                MarkedRoles roles) {
  const PartWalk walk(roles, put_marks);
  Json marked = messages;
  ChatVariables with_marks = variables;
  walk.messages(marked);
  walk.tools(with_marks.tools);
  try {
    const std::string rendered = chat.render(marked, with_marks).text;
    std::string text;
    std::optional<std::vector<PartMark>> marks = take_marks(rendered, text);
    const std::string_view found = text;
    const bool same = found.starts_with(plain) &&
                      (found.size() == plain.size() || found.substr(plain.size()) == behind);
    if (!same) return std::nullopt;
    return marks;
  } catch (const ChatProblem&) {
    return std::nullopt;
  }
}

std::string drop_blanks_before(Json& messages, const PartName& name) {
  std::string dropped;
  const auto drop = [&](const PartName& part, std::string& text, Stretch stretch) {
    if (part != name) return;
    size_t begin = stretch.begin;
    while (const size_t size = blank_at(std::string_view(text).substr(0, begin), false)) {
      begin -= size;
    }
    dropped = text.substr(begin, stretch.begin - begin);
    text.erase(begin, dropped.size());
  };
  PartWalk(MarkedRoles::kAll, drop).messages(messages);
  return dropped;
}

std::string words_of(const Json& message) {
  Json bare = without_thought(message);
  if (const std::string* content = text_member(bare, "content")) {
    const Stretch said = trimmed(*content, 0, content->size());
    if (said.size > 0) return content->substr(said.begin, said.size);
  }
  const Json calls = bare.value("tool_calls", Json::array());
  if (!calls.is_array() || calls.empty() || !calls[0].is_object()) return {};
  Json function = calls[0].value("function", calls[0]);
  const std::string* name = text_member(function, "name");
  return name == nullptr ? std::string() : *name;
}

std::string_view thought_of(const Json& message) {
  for (const char* name : kThoughtMembers) {
    const auto member = message.find(name);
    if (member == message.end() || !member->is_string()) continue;
    const std::string_view text = member->get_ref<const std::string&>();
    const Stretch thought = trimmed(text, 0, text.size());
    if (thought.size > 0) return text.substr(thought.begin, thought.size);
  }
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return {};
  const std::string_view text = content->get_ref<const std::string&>();
  const Stretch thought = thought_and_answer(text).first;
  return text.substr(thought.begin, thought.size);
}

Json without_thought(const Json& message) {
  Json rest = message;
  for (const char* name : kThoughtMembers) rest.erase(name);
  if (std::string* content = text_member(rest, "content")) {
    const size_t close = content->find(kCloseThought);
    if (close != std::string::npos) {
      content->erase(0, close + kCloseThought.size());
      const Stretch said = trimmed(*content, 0, content->size());
      content->erase(0, said.size == 0 ? content->size() : said.begin);
    }
  }
  return rest;
}

}  // namespace longshore
