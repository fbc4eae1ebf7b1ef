// Edits a JSON object as text, so that all other bytes of a user's file stay. That is
// why it looks for the ends of values itself: the reader of base/json.h gives values without their
// places. The text must be JSON that this reader accepts. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace longshore {

struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// Returns where the value of the top-level member of that name is in the text.
std::optional<TextRange> member_value(std::string_view text, std::string_view key);

// Removes the top-level member of that name, if any, and its comma.
std::string without_member(const std::string& text, std::string_view key);

// Puts the member first with `value`, which is JSON, and removes an older one of that name.
std::string with_member(const std::string& text, std::string_view key, std::string_view value);

}  // namespace longshore
