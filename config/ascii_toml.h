// AsciiToml: an ASCII form of a TOML text that toml++ 3.3 parses safely. That version has undefined
// behaviour for non-ASCII characters where it expects blanks, and overflows the stack on deeply
// nested tables. Immutable after construction; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/toml_document.h"

namespace longshore {

class AsciiToml {
 public:
  // ConfigError for invalid UTF-8, deep nesting, or non-ASCII outside strings and comments.
  AsciiToml(std::string_view text, const std::string& origin);

  // The document in ASCII. In strings and comments "`" and two digits encode a byte.
  const std::string& text() const { return ascii_; }
  // Decodes a string from `text()` or from an error message about it.
  static std::string decode(std::string_view ascii);
  // Converts line and column of `text()` to the original text's; columns count characters.
  SourceLocation place(uint32_t line, uint32_t column) const;

 private:
  std::string origin_;
  std::string ascii_;
  std::vector<size_t> line_starts_;
  // Cache of the last query: its position and the characters before it on the line.
  mutable uint32_t counted_line_ = 0;
  mutable uint32_t counted_column_ = 1;
  mutable int64_t counted_characters_ = 0;
};

}  // namespace longshore
