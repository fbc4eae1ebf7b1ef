// Printable: makes untrusted text (names of files, keys, tensors; whole messages) safe for a
// terminal. Control characters, bidirectional controls and invalid UTF-8 become "\x1b" and the
// like. All other characters stay. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longshore {

// Escapes a name for use within a line: also line breaks. Truncates after about `max_bytes`.
std::string printable(std::string_view text, size_t max_bytes = 80);

// Escapes a whole message; line breaks and tabs stay. All terminal output passes through here
// (log.h, output.h), so that a missing `printable` costs at most an odd line.
std::string printable_lines(std::string_view text);

}  // namespace longshore
