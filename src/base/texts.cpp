#include "base/texts.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

namespace longshore {
namespace {

constexpr std::array<std::pair<std::string_view, int64_t>, 4> kUnits = {
    {{"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};
constexpr int64_t kLongestMs = 1000LL * 24 * 3'600'000;

constexpr std::string_view kDigits = "0123456789abcdef";

void append_escaped(std::string& out, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
}

uint32_t code_point(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first;
  uint32_t value = first & (0xFFu >> (sequence.size() + 1));
  for (const char c : sequence.substr(1)) {
    value = value << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  }
  return value;
}

// True for characters that move the cursor, end a line or change the text direction.
bool is_control(uint32_t c) {
  const auto within = [c](uint32_t first, uint32_t last) { return c >= first && c <= last; };
  return c < 0x20 || within(0x7F, 0x9F) || c == 0x61C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069) || c == 0xFEFF;
}

std::string escaped(std::string_view text, bool keep_lines, size_t max_bytes) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  while (at < text.size()) {
    if (at >= max_bytes) return out + "...";
    const size_t bytes = utf8_sequence_bytes(text, at);
    const std::string_view sequence = text.substr(at, bytes == 0 ? 1 : bytes);
    const bool line = keep_lines && (sequence[0] == '\n' || sequence[0] == '\t');
    if (bytes == 0 || (!line && is_control(code_point(sequence)))) {
      append_escaped(out, sequence);
    } else {
      out += sequence;
    }
    at += sequence.size();
  }
  return out;
}

// Returns whether a space groups the digits of a count, as in "20 025".
bool is_in_count(std::string_view line, size_t at) {
  const auto is_digit = [&line](size_t i) { return line[i] >= '0' && line[i] <= '9'; };
  return at > 0 && at + 1 < line.size() && is_digit(at - 1) && is_digit(at + 1);
}

// Returns the place of the space where a line is broken: the last one within the columns, else the
// first one behind them; npos if there is none.
size_t breaking_space(std::string_view line, size_t indent, bool anywhere, size_t columns) {
  constexpr std::string_view kPauses = ",;:.)";
  size_t found = std::string_view::npos, width = indent;
  for (size_t at = indent; at < line.size(); ++at) {
    if (line[at] == ' ' && at > indent && !is_in_count(line, at) &&
        (anywhere || kPauses.find(line[at - 1]) != kPauses.npos)) {
      if (width > columns && found != std::string_view::npos) return found;
      found = at;
    }
    // Bytes that continue a character take no column.
    width += (static_cast<unsigned char>(line[at]) & 0xC0u) != 0x80u ? 1 : 0;
  }
  return width > columns ? found : std::string_view::npos;
}

std::string wrapped_line(std::string_view line, size_t columns) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const std::string margin(indent + 2, ' ');
  std::string text, rest(line);
  for (size_t inside = indent;; inside = margin.size()) {
    const size_t space = breaking_space(rest, inside, indent == 0, columns);
    if (space == std::string::npos) return text + rest;
    text += rest.substr(0, space) + "\n";
    rest = margin + rest.substr(space + 1);
  }
}

}  // namespace

std::string formatted(const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::string text = formatted_list(format, values);
  va_end(values);
  return text;
}

std::string formatted_list(const char* format, va_list values) {
  va_list again;
  va_copy(again, values);
  const int bytes = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  std::string text(static_cast<size_t>(bytes < 0 ? 0 : bytes), '\0');
  // The terminating zero goes where the string has its own.
  std::vsnprintf(text.data(), text.size() + 1, format, values);
  return text;
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const auto& [name, milliseconds] : kUnits) {
    if (unit != name) continue;
    if (number > kLongestMs / milliseconds) return std::nullopt;
    return std::chrono::milliseconds(number * milliseconds);
  }
  return std::nullopt;
}

std::string format_duration(std::chrono::milliseconds duration) {
  for (const auto& [name, milliseconds] : kUnits) {
    if (duration.count() % milliseconds == 0 && (duration.count() != 0 || name == "s")) {
      return std::to_string(duration.count() / milliseconds) + std::string(name);
    }
  }
  return "";
}

std::string format_duration(double seconds) {
  const long long whole = std::isfinite(seconds) ? std::max(0ll, std::llround(seconds)) : 0;
  const long long minutes = whole / 60 % 60;
  const long long hours = whole / 3600;
  if (hours >= 24) return formatted("%lldd %02lld:%02lld", hours / 24, hours % 24, minutes);
  if (hours > 0) return formatted("%lld:%02lld:%02lld", hours, minutes, whole % 60);
  return formatted("%lld:%02lld", minutes, whole % 60);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ' ');
  }
  return digits;
}

int edit_distance(std::string_view from, std::string_view to) {
  // The table of prefixes needs three rows: two back (for swaps), one back, and the current one.
  std::vector<int> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= from.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const int replaced = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[to.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> names) {
  // Longer texts are not typing mistakes, and would make the table large.
  constexpr size_t kMaxName = 64;
  if (name.size() > kMaxName) return "";
  std::string best;
  int best_distance = 0;
  for (const std::string& candidate : names) {
    const auto longer = static_cast<int>(std::max(name.size(), candidate.size()));
    const int distance = edit_distance(name, candidate);
    if (distance > std::max(1, longer / 3)) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

bool glob_matches(std::string_view glob, std::string_view name) {
  return ::fnmatch(std::string(glob).c_str(), std::string(name).c_str(), 0) == 0;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::string printable(std::string_view text, size_t max_bytes) {
  return escaped(text, false, max_bytes);
}

std::string printable_lines(std::string_view text) {
  return escaped(text, true, std::string_view::npos);
}

std::string wrapped_lines(std::string_view text, size_t columns) {
  if (columns == 0) return std::string(text);
  std::string lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += (begin > 0 ? "\n" : "") + wrapped_line(text.substr(begin, end - begin), columns);
    begin = end + 1;
  }
  return lines;
}

// The bounds of the second byte exclude overlong forms (E0, F0), surrogates (ED) and values above
// U+10FFFF (F4).
size_t utf8_sequence_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(at), second = byte(at + 1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(at + 1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (first == 0xE0 && second < 0xA0) return 0;
    if (first == 0xED && second > 0x9F) return 0;
    return continues(at + 1) && continues(at + 2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (first == 0xF0 && second < 0x90) return 0;
    if (first == 0xF4 && second > 0x8F) return 0;
    return continues(at + 1) && continues(at + 2) && continues(at + 3) ? 4 : 0;
  }
  return 0;
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t bytes = utf8_sequence_bytes(text, at);
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

}  // namespace longshore
