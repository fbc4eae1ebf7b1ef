#include "hf/json_members.h"

#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// Returns the end of the JSON value that begins at `at`; the text is valid.
size_t end_of_value(std::string_view text, size_t at) {
  int depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      in_string = c != '"';
      if (c == '"' && depth == 0) return at + 1;
      continue;
    }
    if (c == '"') in_string = true;
    const bool ends_number = c == '}' || c == ',' || c == ']' || kSpace.find(c) != kSpace.npos;
    if (ends_number && depth == 0) return at;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at + 1;
  }
  throw CheckFailure("JSON that ends inside a value");
}

std::string quoted(std::string_view key) {
  return "\"" + std::string(key) + "\"";
}

// The places of a member in the text; its key is from `begin` to `key_end`.
struct MemberPlace {
  size_t begin = 0, key_end = 0, value = 0, end = 0;
};

// Returns the members of the object at the top, none for other values.
std::vector<MemberPlace> members_of(std::string_view text) {
  std::vector<MemberPlace> members;
  size_t at = text.find_first_not_of(kSpace);
  if (at == text.npos || text[at] != '{') return members;
  while (text[at] != '}') {
    at = text.find_first_not_of(kSpace, at + 1);  // after the brace or a comma
    if (text.at(at) == '}') break;
    const size_t key_end = end_of_value(text, at);
    const size_t value = text.find_first_not_of(kSpace, text.find(':', key_end) + 1);
    members.push_back({at, key_end, value, end_of_value(text, value)});
    at = text.find_first_not_of(kSpace, members.back().end);
  }
  return members;
}

bool is_named(std::string_view text, const MemberPlace& member, std::string_view key) {
  return text.substr(member.begin, member.key_end - member.begin) == quoted(key);
}

}  // namespace

std::optional<TextRange> member_value(std::string_view text, std::string_view key) {
  for (const MemberPlace& member : members_of(text)) {
    if (is_named(text, member, key)) return TextRange{member.value, member.end};
  }
  return std::nullopt;
}

std::string without_member(const std::string& text, std::string_view key) {
  const std::vector<MemberPlace> members = members_of(text);
  for (size_t i = 0; i < members.size(); ++i) {
    if (!is_named(text, members[i], key)) continue;
    // Removes the comma after the member too, or the one before it if the member is the last.
    if (i + 1 < members.size())
      return text.substr(0, members[i].begin) + text.substr(members[i + 1].begin);
    return text.substr(0, i > 0 ? members[i - 1].end : members[i].begin) +
           text.substr(members[i].end);
  }
  return text;
}

std::string with_member(const std::string& text, std::string_view key, std::string_view value) {
  std::string others = without_member(text, key);
  const size_t begin = others.find('{') + 1;
  const size_t next = others.find_first_not_of(kSpace, begin);
  const bool alone = others[next] == '}';
  const std::string member = "\n  " + quoted(key) + ": " + std::string(value);
  return others.substr(0, begin) + member +
         (alone ? "\n" + others.substr(next) : "," + others.substr(begin));
}

}  // namespace longshore
