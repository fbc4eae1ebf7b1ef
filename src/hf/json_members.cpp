#include "hf/json_members.h"

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

}  // namespace

std::string without_member(const std::string& text, std::string_view key) {
  const std::string wanted = quoted(key);
  size_t at = text.find('{') + 1;
  size_t after_last = std::string::npos;  // the end of the previous member, without its comma
  while (true) {
    const size_t member = text.find_first_not_of(kSpace, at);
    if (member == std::string::npos || text[member] == '}') return text;
    const size_t key_end = end_of_value(text, member);
    const size_t value = text.find_first_not_of(kSpace, text.find(':', key_end) + 1);
    const size_t end = end_of_value(text, value);
    const size_t comma = text.find_first_not_of(kSpace, end);
    const bool last = text[comma] != ',';
    if (std::string_view(text).substr(member, key_end - member) == wanted) {
      if (!last) {
        return text.substr(0, member) + text.substr(text.find_first_not_of(kSpace, comma + 1));
      }
      const size_t from = after_last == std::string::npos ? member : after_last;
      return text.substr(0, from) + text.substr(end);
    }
    if (last) return text;
    after_last = end;
    at = comma + 1;
  }
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
