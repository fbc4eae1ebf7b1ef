#include "config/toml_document.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <tuple>

// Headers only, so that no installed library has to match.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "base/errors.h"

namespace longshore {
namespace {

// Each dot outside of strings may nest one table deeper, and toml++ destroys tables recursively.
constexpr int64_t kMaxDots = 2000;

Place place_at(std::string_view text, size_t at, const std::string& origin) {
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n');
  const size_t column = line_start == std::string_view::npos ? at + 1 : at - line_start;
  return {origin, static_cast<int32_t>(line), static_cast<int32_t>(column)};
}

// Looks at what stands outside of strings and comments, for what toml++ 3.3 does not survive:
// tables nested without end, and characters beyond ASCII, which TOML 1.0 has in strings and
// comments only.
class Guard {
 public:
  Guard(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text_.starts_with(kByteOrderMark)) at_ = start_ = kByteOrderMark.size();
  }

  void check() {
    int64_t dots = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        if (!may_open_string()) refuse("a quote in the middle of a word");
        skip_string(c);
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      if (beyond_ascii()) refuse("a character beyond ASCII outside of strings");
      if (c == '.' && ++dots > kMaxDots) refuse("nested too deeply");
      ++at_;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(place_at(text_, at_, origin_).text() + ": not TOML: " + what);
  }

  bool beyond_ascii() const {
    return at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x80;
  }

  // toml++ takes other quotes for characters of a number or a word, and looks for its end.
  bool may_open_string() const {
    constexpr std::string_view kBefore = " \t\r\n=,[{";
    return at_ == start_ || kBefore.find(text_[at_ - 1]) != std::string_view::npos;
  }

  size_t quotes_here(char quote) const {
    size_t length = 0;
    while (at_ + length < text_.size() && text_[at_ + length] == quote) ++length;
    return length;
  }

  void skip_string(char quote) {
    const size_t opening = quotes_here(quote);
    if (opening == 2) {
      at_ += 2;
      return;
    }
    const bool multi_line = opening >= 3;
    at_ += multi_line ? 3 : 1;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n' && !multi_line) return;
      if (c == '\\' && quote == '"') {
        skip_escape();
      } else if (c != quote) {
        ++at_;
      } else if (end_string(quote, multi_line)) {
        return;
      }
    }
  }

  // A backslash and what it escapes: a character, or the blanks around the end of a line.
  void skip_escape() {
    const size_t after = std::min(text_.find_first_not_of(" \t\n\v\f\r", at_ + 1), text_.size());
    const bool ends_line = after > at_ + 1;
    at_ = after;
    if (beyond_ascii()) refuse("a character beyond ASCII after a backslash");
    if (!ends_line) ++at_;
  }

  // At a quote in a string: goes past the quotes here; whether they end the string.
  bool end_string(char quote, bool multi_line) {
    const size_t quotes = quotes_here(quote);
    if (!multi_line) {
      ++at_;
      return true;
    }
    // Three quotes end the string; up to two more belong to it.
    at_ += std::min<size_t>(quotes, 5);
    return quotes >= 3;
  }

  std::string_view text_;
  const std::string& origin_;
  size_t start_ = 0;  // behind a byte order mark
  size_t at_ = 0;
};

Place place_of(const toml::source_region& source, const std::string& origin) {
  return {origin, static_cast<int32_t>(source.begin.line),
          static_cast<int32_t>(source.begin.column)};
}

TomlValue convert(const toml::node& node, const std::string& origin, int levels);

std::vector<TomlMember> convert_members(const toml::table& table, const std::string& origin,
                                        int levels) {
  std::vector<TomlMember> members;
  for (const auto& [key, node] : table) {
    members.push_back(
        {std::string(key.str()), convert(node, origin, levels), place_of(key.source(), origin)});
  }
  // toml++ keeps members sorted by name.
  std::stable_sort(members.begin(), members.end(), [](const TomlMember& a, const TomlMember& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  return members;
}

// `levels`: how many more levels of tables or arrays are looked into.
TomlValue convert(const toml::node& node, const std::string& origin, int levels) {
  TomlValue value;
  value.place = place_of(node.source(), origin);
  if (const auto* boolean = node.as_boolean()) {
    value.kind = TomlValue::Kind::kBool;
    value.boolean = boolean->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = TomlValue::Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    value.kind = TomlValue::Kind::kReal;
    value.real = real->get();
  } else if (const auto* string = node.as_string()) {
    value.kind = TomlValue::Kind::kString;
    value.string = string->get();
  } else if (const auto* array = node.as_array()) {
    value.kind = TomlValue::Kind::kArray;
    if (levels > 0) {
      for (const toml::node& element : *array) {
        value.elements.push_back(convert(element, origin, levels - 1));
      }
    }
  } else if (const auto* table = node.as_table()) {
    value.kind = TomlValue::Kind::kTable;
    if (levels > 0) value.members = convert_members(*table, origin, levels - 1);
  } else {
    value.kind = TomlValue::Kind::kDate;
  }
  return value;
}

// toml++'s reasons begin with a capital, name its macros and may quote long stretches of the text.
std::string reason_of(const toml::parse_error& error) {
  constexpr size_t kMaxReason = 200;
  std::string reason;
  for (const char c : error.description()) {
    if (reason.size() == kMaxReason) return reason + "...";
    const auto byte = static_cast<unsigned char>(c);
    reason += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  const size_t macro = reason.find(" (TOML_");
  if (macro != std::string::npos) reason.resize(macro);
  if (!reason.empty() && reason[0] == 'E') reason[0] = 'e';
  return reason;
}

}  // namespace

std::string Place::text() const {
  if (line == 0) return origin;
  return origin + ":" + std::to_string(line) + ":" + std::to_string(column);
}

std::string quote_toml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", byte);
      quoted += escape.data();
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string describe(const TomlValue& value) {
  constexpr size_t kMaxShown = 60;
  switch (value.kind) {
    case TomlValue::Kind::kBool:
      return value.boolean ? "the boolean true" : "the boolean false";
    case TomlValue::Kind::kInteger:
      return "the integer " + std::to_string(value.integer);
    case TomlValue::Kind::kReal: {
      std::ostringstream text;
      text << value.real;
      return "the real " + text.str();
    }
    case TomlValue::Kind::kString:
      if (value.string.size() > kMaxShown) return "a long string";
      return "the string " + quote_toml(value.string);
    case TomlValue::Kind::kDate:
      return "a date or time";
    case TomlValue::Kind::kArray:
      return "an array of " + std::to_string(value.elements.size());
    case TomlValue::Kind::kTable:
      return "a table";
  }
  return "?";
}

std::vector<TomlMember> parse_toml(std::string_view text, const std::string& origin) {
  Guard(text, origin).check();
  try {
    const toml::table table = toml::parse(text, std::string_view(origin));
    // Section, key, elements of an array, and the size of an array among them.
    constexpr int kLevels = 3;
    return convert_members(table, origin, kLevels);
  } catch (const toml::parse_error& error) {
    throw ConfigError(place_of(error.source(), origin).text() + ": not TOML: " + reason_of(error));
  }
}

std::optional<TomlValue> parse_toml_value(std::string_view text, const Place& place) {
  if (text.find('\n') != std::string_view::npos) return std::nullopt;
  try {
    std::vector<TomlMember> members = parse_toml("value = " + std::string(text), place.origin);
    if (members.size() != 1 || members[0].name != "value") return std::nullopt;
    TomlValue value = std::move(members[0].value);
    value.place = place;
    for (TomlValue& element : value.elements) element.place = place;
    return value;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

}  // namespace longshore
