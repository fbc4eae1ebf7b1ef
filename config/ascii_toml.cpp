#include "config/ascii_toml.h"

#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

// The mark and two hexadecimal digits encode a byte.
constexpr char kMark = '`';
constexpr std::string_view kDigits = "0123456789abcdef";

// Each dot outside strings may nest one table deeper, and toml++ destroys tables recursively.
constexpr int64_t kMaxDots = 2000;

int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

SourceLocation place_at(std::string_view text, size_t at, const std::string& origin) {
  const std::string_view before = text.substr(0, at);
  const size_t line_break = before.rfind('\n');
  const size_t line_start = line_break == std::string_view::npos ? 0 : line_break + 1;
  return {origin, static_cast<int32_t>(1 + std::count(before.begin(), before.end(), '\n')),
          static_cast<int32_t>(1 + count_characters(before.substr(line_start)))};
}

// Guard checks the characters outside strings and comments.
class Guard {
 public:
  Guard(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  void check() {
    int64_t dots = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      if (static_cast<unsigned char>(c) >= 0x80) {
        refuse("a character beyond ASCII outside of strings");
      }
      if (c == '.' && ++dots > kMaxDots) refuse("nested too deeply");
      ++at_;
    }
  }

  [[noreturn]] void refuse_at(size_t at, const std::string& what) {
    at_ = at;
    refuse(what);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(place_at(text_, at_, origin_).text() + ": not TOML: " + what);
  }

  size_t quotes_here(char quote) const {
    const size_t end = std::min(text_.find_first_not_of(quote, at_), text_.size());
    return end - at_;
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
        at_ += 2;
      } else if (c != quote) {
        ++at_;
      } else if (end_string(quote, multi_line)) {
        return;
      }
    }
  }

  // Moves past the quotes at the current position and returns whether they end the string.
  bool end_string(char quote, bool multi_line) {
    const size_t quotes = quotes_here(quote);
    if (!multi_line) {
      ++at_;
      return true;
    }
    // Three quotes end the string; up to two more before them belong to it.
    at_ += std::min<size_t>(quotes, 5);
    return quotes >= 3;
  }

  std::string_view text_;
  const std::string& origin_;
  size_t at_ = 0;
};

}  // namespace

AsciiToml::AsciiToml(std::string_view text, const std::string& origin) : origin_(origin) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  Guard guard(text, origin);
  if (const std::optional<size_t> invalid = first_invalid_utf8(text)) {
    guard.refuse_at(*invalid, "invalid UTF-8");
  }
  // After parsing, an escaped mark would look like an encoded byte.
  for (const std::string_view escape : {"\\u0060", "\\U00000060"}) {
    const size_t found = text.find(escape);
    if (found != std::string_view::npos) guard.refuse_at(found, "write ` itself, not its escape");
  }
  guard.check();
  line_starts_.push_back(0);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || c == kMark) {
      ascii_ += {kMark, kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      ascii_ += c;
    }
    if (c == '\n') line_starts_.push_back(ascii_.size());
  }
}

std::string AsciiToml::decode(std::string_view ascii) {
  std::string text;
  for (size_t i = 0; i < ascii.size(); ++i) {
    const size_t high = i + 2 < ascii.size() ? kDigits.find(ascii[i + 1]) : std::string::npos;
    const size_t low = i + 2 < ascii.size() ? kDigits.find(ascii[i + 2]) : std::string::npos;
    if (ascii[i] != kMark || high == std::string::npos || low == std::string::npos) {
      text += ascii[i];
      continue;
    }
    text += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return text;
}

SourceLocation AsciiToml::place(uint32_t line, uint32_t column) const {
  SourceLocation place{origin_, static_cast<int32_t>(line), static_cast<int32_t>(column)};
  if (line == 0 || line > line_starts_.size() || column == 0) return place;
  // Callers ask from left to right; counting on from the last place keeps long lines linear.
  if (line != counted_line_ || column < counted_column_) {
    counted_line_ = line;
    counted_column_ = 1;
    counted_characters_ = 0;
  }
  const size_t from = line_starts_[line - 1] + counted_column_ - 1;
  counted_characters_ +=
      count_characters(decode(std::string_view(ascii_).substr(from, column - counted_column_)));
  counted_column_ = column;
  place.column = static_cast<int32_t>(1 + counted_characters_);
  return place;
}

}  // namespace longshore
