// Printable: text of unknown origin (names of files, keys, tensors, roles, whole messages) as a
// terminal may show it. Control characters, those that turn the direction of text, and bytes that
// are no UTF-8 become "\x1b" and the like; all other characters stay. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longshore {

// A name as part of a line: line breaks are escaped too, and it ends after about `max_bytes`.
std::string printable(std::string_view text, size_t max_bytes = 80);

// A whole message: line breaks and tabs stay. Everything that goes to the terminal comes through
// here (log.h, output.h), so that forgetting `printable` costs no more than a strange line.
std::string printable_lines(std::string_view text);

}  // namespace longshore
