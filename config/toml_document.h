// A TOML text as plain values with their locations. Hides toml++. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// SourceLocation is a line and column of a file (from 1), an argument, or empty.
struct SourceLocation {
  std::string origin;  // "run.toml", "--train.steps"
  int32_t line = 0;    // 0 = the whole origin
  int32_t column = 0;

  // Returns "run.toml:12:1", or the origin alone.
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
  std::vector<TomlValue> elements;  // kArray only
  std::vector<TomlMember> members;  // kTable only; see parse_toml
  SourceLocation place;
};

struct TomlMember {
  std::string name;
  TomlValue value;
  SourceLocation place;  // location of the name
};

// Returns "the integer 3", "the string \"ten\"", "a table" for "expected ..., found ...".
std::string describe(const TomlValue& value);
// Returns the text as a quoted and escaped TOML basic string.
std::string quote_toml(std::string_view text);
// Returns the TOML text of an array of strings.
std::string toml_list(const std::vector<std::string>& texts);

// Returns the document's members in the order of the text. Tables and arrays below five levels are
// empty. ConfigError with the location of the first error. Recursion depth is bounded for any text.
std::vector<TomlMember> parse_toml(std::string_view text, const std::string& origin);

// Parses a single value, as it follows "="; nullopt if the text is not one.
std::optional<TomlValue> parse_toml_value(std::string_view text, const SourceLocation& place);

}  // namespace longshore
