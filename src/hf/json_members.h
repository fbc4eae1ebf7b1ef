// Edits a JSON object as text, so that all other bytes of a user's file stay unchanged. It finds
// the ends of values itself, because the parser of base/json.h does not report positions. The text
// must be JSON that this reader accepts. Pure functions.
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

// Returns the range of the top-level member's value in the text; nullopt if there is no such
// member.
std::optional<TextRange> member_value(std::string_view text, std::string_view key);

// Removes the top-level member of that name, if any, and its comma.
std::string without_member(const std::string& text, std::string_view key);

// Inserts the member as the first one, with `value`, which is JSON, and removes an earlier member
// of that name.
std::string with_member(const std::string& text, std::string_view key, std::string_view value);

}  // namespace longshore
