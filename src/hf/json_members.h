// Members of a JSON object that is edited as text, so that every other byte of somebody's file
// stays as it was written. The text must be valid JSON with an object at the top. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// Without the member of that name at the top, where there is one; only a comma goes with it.
std::string without_member(const std::string& text, std::string_view key);

// With the member set to `value`, which is JSON: it stands first, and one of that name goes.
std::string with_member(const std::string& text, std::string_view key, std::string_view value);

}  // namespace longshore
