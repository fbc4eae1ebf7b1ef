// AsciiToml: a TOML text as toml++ 3.3 survives it. That version runs into undefined behaviour
// where it looks for blanks and finds characters beyond ASCII, and overflows the stack on tables
// that nest without end. Made from a text, then only read; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/toml_document.h"

namespace longshore {

class AsciiToml {
 public:
  // ConfigError for a text that is not UTF-8, nests too deeply, or has characters beyond ASCII
  // outside of strings and comments, where TOML has none.
  AsciiToml(std::string_view text, const std::string& origin);

  // The document in ASCII; in strings and comments "`" and two digits stand for a byte.
  const std::string& text() const { return ascii_; }
  // A string or a reason out of `text()`, as it was meant.
  static std::string decode(std::string_view ascii);
  // Where line and column of `text()` lie in the original; columns count characters.
  SourceLocation place(uint32_t line, uint32_t column) const;

 private:
  std::string origin_;
  std::string ascii_;
  std::vector<size_t> line_starts_;
  // The last place that was asked for, and the characters before it on its line.
  mutable uint32_t counted_line_ = 0;
  mutable uint32_t counted_column_ = 1;
  mutable int64_t counted_characters_ = 0;
};

}  // namespace longshore
