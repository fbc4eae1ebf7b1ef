// Text helpers: printf-style formatting, joining, trimming, wrapping, globs, durations, validation
// of UTF-8, escapes for a terminal, the known name nearest to a mistyped one, and files that are
// embedded in the program. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace longshore {

// formatted: text by the formats of printf. {fmt} is not used (GCC 12 has no std::format): a small
// file compiles in 0.7 s with a shared {fmt} as without, but the wheel and the installed engine
// would have to bring that library along; with {fmt} as headers alone it takes 4.4 s.

// Returns what printf would print. GCC checks the arguments against the format.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);
[[gnu::format(printf, 1, 0)]] std::string formatted_list(const char* format, va_list values);

// Durations and their text forms ("30s", "10m"). Pure functions.

// Parses "500ms", "30s", "10m", "2h". Returns nullopt for other texts and beyond 1000 days.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

// Formats the duration in the largest unit that divides it, so that nothing is rounded.
std::string format_duration(std::chrono::milliseconds duration);

// Formats as a clock: "0:09", "14:02", "3:14:02", "2d 03:14"; "0:00" if negative or not finite.
std::string format_duration(double seconds);

// Formats a count in groups of three digits: "2 431". Text for people has counts in this form.
std::string format_count(int64_t count);

// nearest_name: the known name that is closest to a mistyped one, for "did you mean". Pure.

// Counts the insertions, deletions, replacements and swaps of neighbours between two texts.
int edit_distance(std::string_view from, std::string_view to);

// Returns the closest of `names`, the first among equals. Returns "" if more than a third of the
// longer name's characters differ; one change is always allowed.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

// Joins the elements' texts with the separator; `text_of` returns the text of an element. Numbers
// are written in full.
template <typename Elements, typename TextOf>
std::string joined(const Elements& elements, std::string_view separator, const TextOf& text_of) {
  std::string all;
  for (const auto& element : elements) {
    if (!all.empty()) all += separator;
    all += text_of(element);
  }
  return all;
}
template <typename Elements>
std::string joined(const Elements& elements, std::string_view separator) {
  return joined(elements, separator, [](const auto& element) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(element)>>) {
      return std::to_string(element);
    } else {
      return std::string_view(element);
    }
  });
}

// Returns whether the whole name matches a glob: * any text, ? a character, [...] one of several.
bool glob_matches(std::string_view glob, std::string_view name);

// Returns the text without spaces, tabs and line breaks at its ends.
std::string_view trimmed(std::string_view text);

// Makes untrusted text (names of files, keys, tensors; whole messages) safe for a terminal. Control
// characters, bidirectional controls and invalid UTF-8 become "\x1b" and the like. All other
// characters stay. Pure functions, any thread.

// Escapes a name for use within a line: also line breaks. Truncates after about `max_bytes`.
std::string printable(std::string_view text, size_t max_bytes = 80);

// Escapes a whole message; line breaks and tabs stay. All terminal output passes through here
// (log.h), so that a missing `printable` costs at most an odd line.
std::string printable_lines(std::string_view text);

// Breaks lines that are longer than `columns` at spaces, and indents the rest by two more. Indented
// lines are broken only after a punctuation mark, so that a command to copy stays whole. 0 columns
// change nothing.
std::string wrapped_lines(std::string_view text, size_t columns);

// Validation of UTF-8 in untrusted text. Pure functions, any thread.

// Returns the byte offset of the first invalid sequence (overlong forms, surrogates and values
// above U+10FFFF included); nullopt if all of the text is valid.
std::optional<size_t> first_invalid_utf8(std::string_view text);

// Returns the length of the character that starts at text[at], or 0 if it is invalid.
size_t utf8_sequence_bytes(std::string_view text, size_t at);

// NamedText: a file embedded in the program, with its name without extension. Constants;
// cmake/EmbeddedTexts.cmake generates lists of them, sorted by name.

struct NamedText {
  std::string_view name;
  std::string_view text;
};

// Returns null if no text has that name.
inline const NamedText* find_text(std::span<const NamedText> texts, std::string_view name) {
  const auto found = std::ranges::find(texts, name, &NamedText::name);
  return found == texts.end() ? nullptr : &*found;
}

// Returns all names, each after a space: " a b c".
inline std::string names_of(std::span<const NamedText> texts) {
  std::string names;
  for (const NamedText& text : texts) names += " " + std::string(text.name);
  return names;
}

}  // namespace longshore
