// NamedText: a file that is part of the program, by its name without the ending. Constants of the
// program; cmake/EmbeddedTexts.cmake makes lists of them, sorted by name.
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

// Null where none has that name.
inline const NamedText* find_text(std::span<const NamedText> texts, std::string_view name) {
  const auto found = std::ranges::find(texts, name, &NamedText::name);
  return found == texts.end() ? nullptr : &*found;
}

// " a b c"
inline std::string names_of(std::span<const NamedText> texts) {
  std::string names;
  for (const NamedText& text : texts) names += " " + std::string(text.name);
  return names;
}

}  // namespace longshore
