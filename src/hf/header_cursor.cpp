#include "hf/header_cursor.h"

#include <array>
#include <limits>

#include "base/errors.h"

namespace longshore {
namespace {

bool is_digit(unsigned char byte) {
  return byte >= '0' && byte <= '9';
}

void append_code_point(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

void HeaderCursor::fail(const std::string& reason) {
  fail_("header byte " + std::to_string(at_) + ": " + reason);
  LONGSHORE_CHECK(false) << "an error handler returned";
  std::terminate();
}

void HeaderCursor::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool HeaderCursor::take(char wanted) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

void HeaderCursor::expect(char wanted) {
  if (take(wanted)) return;
  fail(at_ >= text_.size() ? "the header ends in the middle"
                           : std::string("expected '") + wanted + "'");
}

void HeaderCursor::expect_end() {
  skip_space();
  if (at_ < text_.size()) fail("bytes after the header's object");
}

unsigned char HeaderCursor::next_byte() {
  if (at_ >= text_.size()) fail("the header ends in the middle");
  return static_cast<unsigned char>(text_[at_++]);
}

std::string HeaderCursor::string(Bytes max_bytes) {
  expect('"');
  std::string out;
  while (true) {
    const unsigned char byte = next_byte();
    if (byte == '"') return out;
    if (byte < 0x20) fail("a control character in a string");
    if (byte == '\\') {
      append_escape(out);
    } else if (byte < 0x80) {
      out += static_cast<char>(byte);
    } else {
      append_utf8(out, byte);
    }
    if (static_cast<Bytes>(out.size()) > max_bytes) {
      fail("a string longer than " + format_bytes(max_bytes));
    }
  }
}

uint32_t HeaderCursor::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned char byte = next_byte();
    uint32_t digit = 0;
    if (is_digit(byte)) {
      digit = byte - '0';
    } else if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f') {
      digit = (byte | 0x20) - 'a' + 10;
    } else {
      fail("a malformed \\u escape");
    }
    value = value << 4 | digit;
  }
  return value;
}

void HeaderCursor::append_escape(std::string& out) {
  const unsigned char kind = next_byte();
  constexpr std::string_view kShort = "\"\\/bfnrt";
  constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
  const size_t found = kShort.find(static_cast<char>(kind));
  if (found != std::string_view::npos) {
    out += kMeaning[found];
    return;
  }
  if (kind != 'u') fail("an unknown escape");
  uint32_t code = hex4();
  if (code == 0) fail("a NUL in a string");
  if (code >= 0xDC00 && code <= 0xDFFF) fail("a lone surrogate");
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (next_byte() != '\\' || next_byte() != 'u') fail("a lone surrogate");
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("a lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_code_point(out, code);
}

void HeaderCursor::append_utf8(std::string& out, unsigned char first) {
  // The second byte's range excludes overlong forms, surrogates and codes above U+10FFFF.
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  int following = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    following = 1;
  } else if (first >= 0xE0 && first <= 0xEF) {
    following = 2;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    following = 3;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    fail("invalid UTF-8");
  }
  out += static_cast<char>(first);
  for (int i = 0; i < following; ++i) {
    const unsigned char byte = next_byte();
    if (byte < low || byte > high) fail("invalid UTF-8");
    out += static_cast<char>(byte);
    low = 0x80;
    high = 0xBF;
  }
}

int64_t HeaderCursor::integer() {
  skip_space();
  unsigned char byte = next_byte();
  if (byte == '-') fail("a negative number");
  if (!is_digit(byte)) fail("expected an integer");
  if (byte == '0' && at_ < text_.size() && is_digit(static_cast<unsigned char>(text_[at_]))) {
    fail("a number with a leading zero");
  }
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t value = byte - '0';
  while (at_ < text_.size() && is_digit(static_cast<unsigned char>(text_[at_]))) {
    const int64_t digit = text_[at_++] - '0';
    if (value > (kMax - digit) / 10) fail("a number outside 63 bits");
    value = value * 10 + digit;
  }
  if (at_ < text_.size()) {
    const char after = text_[at_];
    if (after == '.' || after == 'e' || after == 'E') fail("a number that is not an integer");
  }
  return value;
}

}  // namespace longshore
