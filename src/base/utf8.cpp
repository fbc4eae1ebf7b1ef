#include "base/utf8.h"

#include <cstdint>

namespace longshore {

// The bounds of the second byte exclude overlong forms (E0, F0), surrogates (ED) and values above
// U+10FFFF (F4).
size_t utf8_sequence_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(at), second = byte(at + 1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(at + 1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (first == 0xE0 && second < 0xA0) return 0;
    if (first == 0xED && second > 0x9F) return 0;
    return continues(at + 1) && continues(at + 2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (first == 0xF0 && second < 0x90) return 0;
    if (first == 0xF4 && second > 0x8F) return 0;
    return continues(at + 1) && continues(at + 2) && continues(at + 3) ? 4 : 0;
  }
  return 0;
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t bytes = utf8_sequence_bytes(text, at);
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

}  // namespace longshore
