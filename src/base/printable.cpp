#include "base/printable.h"

#include <cstdint>

#include "base/utf8.h"

namespace longshore {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

void append_escaped(std::string& out, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
}

uint32_t code_point(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first;
  uint32_t value = first & (0xFFu >> (sequence.size() + 1));
  for (const char c : sequence.substr(1)) {
    value = value << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  }
  return value;
}

// True for characters that move the cursor, end a line or change the text direction.
bool is_control(uint32_t c) {
  const auto within = [c](uint32_t first, uint32_t last) { return c >= first && c <= last; };
  return c < 0x20 || within(0x7F, 0x9F) || c == 0x61C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069) || c == 0xFEFF;
}

std::string escaped(std::string_view text, bool keep_lines, size_t max_bytes) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  while (at < text.size()) {
    if (at >= max_bytes) return out + "...";
    const size_t bytes = utf8_sequence_bytes(text, at);
    const std::string_view sequence = text.substr(at, bytes == 0 ? 1 : bytes);
    const bool line = keep_lines && (sequence[0] == '\n' || sequence[0] == '\t');
    if (bytes == 0 || (!line && is_control(code_point(sequence)))) {
      append_escaped(out, sequence);
    } else {
      out += sequence;
    }
    at += sequence.size();
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  return escaped(text, false, max_bytes);
}

std::string printable_lines(std::string_view text) {
  return escaped(text, true, std::string_view::npos);
}

}  // namespace longshore
