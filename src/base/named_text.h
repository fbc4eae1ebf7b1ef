// NamedText: a file embedded in the program, with its name without extension. Constants;
// cmake/EmbeddedTexts.cmake generates lists of them, sorted by name.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace longshore {

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
