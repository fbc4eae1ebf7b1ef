// Utf8: checking of text from outside. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace longshore {

// Byte offset of the first sequence that is not UTF-8 (overlong forms, surrogates and values above
// U+10FFFF included); nullopt where all of it is.
std::optional<size_t> first_invalid_utf8(std::string_view text);

// Length of the character that starts at text[at], or 0 where there is none.
size_t utf8_sequence_bytes(std::string_view text, size_t at);

}  // namespace longshore
