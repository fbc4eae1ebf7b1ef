#include "base/python_numbers.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>

namespace longshore {
namespace {

// Returns the end of the string that begins at `at`; the end of the text if it is unterminated.
size_t end_of_string(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

bool is_of_number(char letter) {
  return (letter >= '0' && letter <= '9') || letter == '.' || letter == 'e' || letter == 'E' ||
         letter == '+' || letter == '-';
}

// Returns a spelling of the number that every reader accepts; nullopt if it can stay.
std::optional<std::string> rewritten(std::string_view number) {
  const char* const end = number.data() + number.size();
  const bool real = number.find_first_of(".eE") != std::string_view::npos;
  if (!real) {
    int64_t small = 0;
    uint64_t large = 0;
    if (std::from_chars(number.data(), end, small).ec == std::errc()) return std::nullopt;
    if (std::from_chars(number.data(), end, large).ec == std::errc()) return std::nullopt;
  }
  double value = 0.0;
  const auto [stop, error] = std::from_chars(number.data(), end, value);
  if (stop != end) return std::nullopt;
  // An out-of-range value is too large, or so small that Python reads 0.
  if (error == std::errc::result_out_of_range) {
    const bool tiny =
        number.find("e-") != std::string_view::npos || number.find("E-") != std::string_view::npos;
    return tiny ? "0.0" : '"' + std::string(number) + '"';
  }
  if (real) return std::nullopt;
  return std::string(number) + ".0";
}

}  // namespace

std::string python_numbers(std::string_view text) {
  constexpr std::array<std::string_view, 3> kWords = {"NaN", "Infinity", "-Infinity"};
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    std::optional<std::string> other;
    if (text[at] == '"') {
      end = end_of_string(text, at);
    } else if ((text[at] >= '0' && text[at] <= '9') || text[at] == '-') {
      while (end < text.size() && is_of_number(text[end])) ++end;
      other = rewritten(text.substr(at, end - at));
    }
    for (const std::string_view word : kWords) {
      if (text[at] == '"' || !text.substr(at).starts_with(word)) continue;
      end = at + word.size();
      other = '"' + std::string(word) + '"';
    }
    out += other ? std::string_view(*other) : text.substr(at, end - at);
    at = end;
  }
  return out;
}

}  // namespace longshore
