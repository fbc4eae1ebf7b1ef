// JsonMembers: edits a JSON object as text, so that all other bytes of a user's file stay. The text
// must be valid JSON with an object at the top. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// Removes the top-level member of that name, if any, and its comma.
std::string without_member(const std::string& text, std::string_view key);

// Puts the member first with `value`, which is JSON, and removes an older one of that name.
std::string with_member(const std::string& text, std::string_view key, std::string_view value);

}  // namespace longshore
