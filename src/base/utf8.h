// Utf8: validates untrusted text. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace longshore {

// Returns the byte offset of the first invalid sequence (overlong forms, surrogates and values
// above U+10FFFF included); nullopt if all of the text is valid.
std::optional<size_t> first_invalid_utf8(std::string_view text);

// Returns the length of the character that starts at text[at], or 0 if it is invalid.
size_t utf8_sequence_bytes(std::string_view text, size_t at);

}  // namespace longshore
