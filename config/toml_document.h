// TomlDocument: a TOML text as plain values with their places. The only file that knows toml++.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// Where something was said: a file's line and column (from 1), or an argument, or nowhere.
struct SourceLocation {
  std::string origin;  // "run.toml", "--train.steps"
  int32_t line = 0;    // 0 = the whole origin
  int32_t column = 0;

  // "run.toml:12:1" or the origin alone.
  std::string text() const;
};

struct TomlMember;

struct TomlValue {
  enum class Kind : uint8_t { kBool, kInteger, kReal, kString, kDate, kArray, kTable };
  Kind kind = Kind::kBool;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0.0;
  std::string string;
  std::vector<TomlValue> elements;  // of an array
  std::vector<TomlMember> members;  // of a table; see parse_toml
  SourceLocation place;
};

struct TomlMember {
  std::string name;
  TomlValue value;
  SourceLocation place;  // of the name
};

// "the integer 3", "the string \"ten\"", "a table"; for "expected ..., found ...".
std::string describe(const TomlValue& value);
// The text as a basic string of TOML, quoted and escaped.
std::string quote_toml(std::string_view text);

// The members of the document in the order of the text. Tables and arrays are read five levels
// deep; those further down are empty. ConfigError with the place of
// the first error. Never recurses deeper than a fixed bound, whatever the text.
std::vector<TomlMember> parse_toml(std::string_view text, const std::string& origin);

// A single value, as on the right of "="; nullopt when the text is none.
std::optional<TomlValue> parse_toml_value(std::string_view text, const SourceLocation& place);

}  // namespace longshore
