// HeaderCursor: a strict walk over the JSON of a safetensors header, which knows only objects,
// arrays, strings and non-negative integers. It makes nothing but the strings it returns.
// Owned by one parser; one thread. The text must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

class HeaderCursor {
 public:
  // `fail` gets the reason of a syntax error and must throw.
  HeaderCursor(std::string_view text, std::function<void(const std::string&)> fail)
      : text_(text), fail_(std::move(fail)) {}

  // Skips space; true when the next character is `wanted`, which is then taken.
  bool take(char wanted);
  // Skips space and takes `wanted`; fails where another character is next.
  void expect(char wanted);
  // A string of at most `max_bytes` after decoding; valid UTF-8 without NUL and lone surrogates.
  std::string string(Bytes max_bytes);
  // An integer from 0 to 2^63 - 1.
  int64_t integer();
  // Only space may follow.
  void expect_end();
  size_t position() const { return at_; }

 private:
  [[noreturn]] void fail(const std::string& reason);
  void skip_space();
  // The next byte, or an error where the text ends.
  unsigned char next_byte();
  void append_escape(std::string& out);
  void append_utf8(std::string& out, unsigned char first);
  uint32_t hex4();

  std::string_view text_;
  std::function<void(const std::string&)> fail_;
  size_t at_ = 0;
};

}  // namespace longshore
