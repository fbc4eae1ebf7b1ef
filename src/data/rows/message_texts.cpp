// Members of rows that hold messages as JSON text: they are read as the messages.
#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "data/rows/chat_rows.h"

namespace longshore {
namespace {

constexpr std::array kWrappers = {"messages", "conversations"};
constexpr std::array kAnswers = {"completion", "response", "output", "chosen", "rejected"};
constexpr std::array kPrompts = {"prompt", "instruction", "question"};

// TextKind: what a member's text is.
enum class TextKind : uint8_t { kPlain, kMessages, kPython };

char first_letter(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? '\0' : text[first];
}

// Returns true for an object with a known role and what that says. Other objects are honest JSON,
// such as an answer that a model has to write.
bool is_message(const Json& value) {
  if (!value.is_object()) return false;
  const auto role = value.find("role"), from = value.find("from");
  if (role != value.end() && role->is_string() && is_role(role->get<std::string>())) {
    return value.contains("content") || value.contains("tool_calls");
  }
  return from != value.end() && from->is_string() && is_role(from->get<std::string>()) &&
         value.contains("value");
}

bool is_list_of_messages(const Json& value) {
  return value.is_array() && !value.empty() && std::ranges::all_of(value, is_message);
}

// Returns the messages of an object {"messages": [...]}, or null for another value.
const Json* wrapped_messages(const Json& value) {
  if (!value.is_object()) return nullptr;
  for (const char* name : kWrappers) {
    const auto found = value.find(name);
    if (found != value.end() && is_list_of_messages(*found)) return &*found;
  }
  return nullptr;
}

// Returns the value, or the messages of an object {"messages": [...]}, which must have no others.
Json unwrapped(Json value, const std::string& key) {
  const Json* messages = wrapped_messages(value);
  if (messages == nullptr) return value;
  if (value.size() > 1) {
    throw RowProblem(key + ": has members beside its messages, found " + keys_of(value) +
                     "; give them as members of the row");
  }
  return Json(*messages);
}

// Returns the value if the text is JSON with messages; null if it is anything else.
Json messages_in(const std::string& text) {
  const char first = first_letter(text);
  if (first != '[' && first != '{') return nullptr;
  try {
    Json value = parse_python_json(text, {}, {});
    const bool messages =
        wrapped_messages(value) != nullptr || is_message(value) || is_list_of_messages(value);
    if (messages) return value;
  } catch (const DataError&) {
    // Most texts are no JSON.
  }
  return nullptr;
}

// Returns true for messages as Python's repr() writes them: [{'role': ...}].
bool is_python_messages(std::string_view text) {
  text = trimmed(text);
  if (!text.ends_with(']') && !text.ends_with('}')) return false;
  if (text.starts_with('[')) text = trimmed(text.substr(1));
  if (!text.starts_with('{')) return false;
  text = trimmed(text.substr(1));
  for (const std::string_view name :
       {"'role':", "'content':", "'from':", "'value':", "'messages':", "'conversations':"}) {
    if (text.starts_with(name)) return true;
  }
  return false;
}

[[noreturn]] void refuse_python_literal(const std::string& key) {
  throw RowProblem(key + ": holds a Python literal; write JSON, as json.dumps does");
}

// Converts the form of older `datasets` versions, one object of lists of equal lengths, to a list
// of messages. Null means that a message lacks the member.
Json list_of_messages(const Json& lists, const std::string& name) {
  Json messages = Json::array();
  bool first = true;
  for (const auto& [key, values] : lists.items()) {
    if (!values.is_array()) {
      throw RowProblem(name + "." + key + ": expected an array, found " + article_and_type(values));
    }
    for (size_t i = 0; first && i < values.size(); ++i) messages.push_back(Json::object());
    first = false;
    if (values.size() != messages.size()) {
      throw RowProblem(name + "." + key + ": has " + std::to_string(values.size()) +
                       " values, others have " + std::to_string(messages.size()));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i].is_null()) messages[i][key] = values[i];
    }
  }
  return messages;
}

// MessageTexts: the members of one row, and which of them are messages as text.
class MessageTexts {
 public:
  MessageTexts(const Json& row, const RowFormatOptions& options) : row_(row) {
    for (const char* name : kAnswers) add(options.name_of(name), answers_);
    for (const char* name : kPrompts) {
      if (prompt_.empty()) add(options.name_of(name), prompt_);
    }
  }

  bool any() const { return any_; }

  // Returns whether the row is one of messages: each of its answers is, and its prompt too, unless
  // that is the text of one of them. A text beside a prompt in plain words stays a text: it may be
  // an answer that a model has to write so.
  bool is_conversation() const {
    if (answers_.empty() || !std::ranges::all_of(answers_, is_messages)) return false;
    if (prompt_.empty() || is_messages(prompt_.front())) return true;
    const Json& prompt = *prompt_.front().value;
    return prompt.is_string() && std::ranges::all_of(answers_, [&](const Member& answer) {
             return holds_text(answer, prompt.get_ref<const std::string&>());
           });
  }

  Json parsed() {
    Json row = row_;
    for (std::vector<Member>* members : {&answers_, &prompt_}) {
      for (Member& member : *members) {
        if (member.kind == TextKind::kPython) refuse_python_literal(member.key);
        if (member.kind == TextKind::kMessages) {
          row[member.key] = unwrapped(std::move(member.messages), member.key);
        }
      }
    }
    return row;
  }

 private:
  struct Member {
    std::string key;
    const Json* value;
    TextKind kind = TextKind::kPlain;
    Json messages = nullptr;  // with kMessages
  };

  void add(const std::string& key, std::vector<Member>& members) {
    const auto found = row_.find(key);
    if (found == row_.end() || found->is_null()) return;
    Member member{.key = key, .value = &*found};
    if (found->is_string()) {
      const auto& text = found->get_ref<const std::string&>();
      member.messages = messages_in(text);
      if (!member.messages.is_null()) {
        member.kind = TextKind::kMessages;
      } else if (is_python_messages(text)) {
        member.kind = TextKind::kPython;
      }
    } else if (found->is_array() && !found->empty() &&
               std::ranges::all_of(*found, is_text_of_messages)) {
      member.kind = TextKind::kMessages;
      member.messages = messages_of_member(*found, key, nullptr);
    }
    any_ = any_ || member.kind != TextKind::kPlain;
    members.push_back(std::move(member));
  }

  static bool is_messages(const Member& member) {
    return member.value->is_structured() || member.kind != TextKind::kPlain;
  }

  // Returns true if one of the answer's messages has this text.
  static bool holds_text(const Member& answer, const std::string& text) {
    if (answer.kind == TextKind::kPython) {
      return answer.value->get_ref<const std::string&>().find(text) != std::string::npos;
    }
    const Json& value = answer.messages.is_null() ? *answer.value : answer.messages;
    const Json* wrapped = wrapped_messages(value);
    const Json& messages = wrapped == nullptr ? value : *wrapped;
    return messages.is_array() && is_message_of(messages, text);
  }

  const Json& row_;
  std::vector<Member> answers_, prompt_;  // at most one prompt
  bool any_ = false;
};

}  // namespace

bool is_message_of(const Json& messages, const std::string& content) {
  return std::ranges::any_of(messages, [&content](const Json& message) {
    if (!message.is_object()) return false;
    for (const char* name : {"content", "value"}) {
      const auto found = message.find(name);
      if (found == message.end() || !found->is_string()) continue;
      if (trimmed(found->get_ref<const std::string&>()) == trimmed(content)) return true;
    }
    return false;
  });
}

std::optional<Json> with_parsed_messages(const Json& row, const RowFormatOptions& options,
                                         RowNotes* notes) {
  if (!row.is_object()) return std::nullopt;
  MessageTexts texts(row, options);
  if (!texts.any()) return std::nullopt;
  const bool conversation = texts.is_conversation();
  if (notes != nullptr) ++(conversation ? notes->json_messages : notes->json_texts);
  if (!conversation) return std::nullopt;
  return texts.parsed();
}

bool is_text_of_messages(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return !messages_in(text).is_null() || is_python_messages(text);
}

Json parsed_if_json(const Json& value, const std::string& place) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  const char first = first_letter(text);
  if (first != '[' && first != '{') return value;
  try {
    return parse_python_json(text, {}, {});
  } catch (const DataError& error) {
    const size_t inside = text.find_first_not_of("[{ \t\r\n");
    if (inside != std::string::npos && text[inside] == '\'') refuse_python_literal(place);
    // The position in an unnamed text starts with ":1: ", its line.
    std::string reason = error.what();
    reason.erase(0, reason.find(": ") + 2);
    throw RowProblem(place + ": the string is no JSON: " + reason);
  }
}

Json messages_of_member(const Json& member, const std::string& name, RowNotes* notes) {
  Json list = unwrapped(parsed_if_json(member, name), name);
  bool parsed = member.is_string() && !list.is_string();
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    if (!list[i].is_string()) continue;
    list[i] = parsed_if_json(list[i], place_of(name, i));
    parsed = parsed || !list[i].is_string();
  }
  if (parsed && notes != nullptr) ++notes->json_messages;
  const bool lists = list.is_object() && !list.empty() && list.begin()->is_array();
  return lists ? list_of_messages(list, name) : list;
}

}  // namespace longshore
