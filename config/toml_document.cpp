#include "config/toml_document.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <tuple>

// Header-only use depends on no installed library.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "base/errors.h"
#include "config/ascii_toml.h"

namespace longshore {
namespace {

// The longest arrays of a run file are lists of files and globs.
constexpr size_t kMostElements = 100'000;

SourceLocation place_of(const toml::source_region& source, const AsciiToml& document) {
  return document.place(source.begin.line, source.begin.column);
}

TomlValue convert(const toml::node& node, const AsciiToml& document, int levels);

std::vector<TomlMember> convert_members(const toml::table& table, const AsciiToml& document,
                                        int levels) {
  std::vector<TomlMember> members;
  for (const auto& [key, node] : table) {
    members.push_back({AsciiToml::decode(key.str()), convert(node, document, levels),
                       place_of(key.source(), document)});
  }
  // toml++ sorts members by name, so the text's order is restored.
  std::stable_sort(members.begin(), members.end(), [](const TomlMember& a, const TomlMember& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  return members;
}

// `levels` is the number of nested levels below this node that are converted.
TomlValue convert(const toml::node& node, const AsciiToml& document, int levels) {
  TomlValue value;
  value.place = place_of(node.source(), document);
  if (const auto* boolean = node.as_boolean()) {
    value.kind = TomlValue::Kind::kBool;
    value.boolean = boolean->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = TomlValue::Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    value.kind = TomlValue::Kind::kReal;
    value.real = real->get();
  } else if (const auto* string = node.as_string()) {
    value.kind = TomlValue::Kind::kString;
    value.string = AsciiToml::decode(string->get());
  } else if (const auto* array = node.as_array()) {
    value.kind = TomlValue::Kind::kArray;
    if (array->size() > kMostElements) {
      throw ConfigError(value.place.text() + ": an array of " + std::to_string(array->size()) +
                        ", the limit is " + std::to_string(kMostElements));
    }
    if (levels > 0) {
      for (const toml::node& element : *array) {
        value.elements.push_back(convert(element, document, levels - 1));
      }
    }
  } else if (const auto* table = node.as_table()) {
    value.kind = TomlValue::Kind::kTable;
    if (levels > 0) value.members = convert_members(*table, document, levels - 1);
  } else {
    value.kind = TomlValue::Kind::kDate;
  }
  return value;
}

// toml++'s messages start with a capital, name macros and may quote long parts of the text.
std::string reason_of(const toml::parse_error& error) {
  constexpr size_t kMaxReason = 200;
  std::string reason;
  for (const char c : AsciiToml::decode(error.description())) {
    if (reason.size() == kMaxReason) return reason + "...";
    const auto byte = static_cast<unsigned char>(c);
    reason += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  const size_t macro = reason.find(" (TOML_");
  if (macro != std::string::npos) reason.resize(macro);
  if (!reason.empty() && reason[0] == 'E') reason[0] = 'e';
  return reason;
}

}  // namespace

std::string SourceLocation::text() const {
  if (line == 0) return origin;
  return origin + ":" + std::to_string(line) + ":" + std::to_string(column);
}

std::string quote_toml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", byte);
      quoted += escape.data();
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string describe(const TomlValue& value) {
  constexpr size_t kMaxShown = 60;
  switch (value.kind) {
    case TomlValue::Kind::kBool:
      return value.boolean ? "the boolean true" : "the boolean false";
    case TomlValue::Kind::kInteger:
      return "the integer " + std::to_string(value.integer);
    case TomlValue::Kind::kReal: {
      std::ostringstream text;
      text << value.real;
      return "the real " + text.str();
    }
    case TomlValue::Kind::kString:
      if (value.string.size() > kMaxShown) return "a long string";
      return "the string " + quote_toml(value.string);
    case TomlValue::Kind::kDate:
      return "a date or time";
    case TomlValue::Kind::kArray:
      return "an array of " + std::to_string(value.elements.size());
    case TomlValue::Kind::kTable:
      return "a table";
  }
  return "?";
}

std::vector<TomlMember> parse_toml(std::string_view text, const std::string& origin) {
  const AsciiToml document(text, origin);
  try {
    const toml::table table =
        toml::parse(std::string_view(document.text()), std::string_view(origin));
    // The levels are section, key, member of a table, elements of an array, and nested elements.
    constexpr int kLevels = 5;
    return convert_members(table, document, kLevels);
  } catch (const toml::parse_error& error) {
    const SourceLocation place = place_of(error.source(), document);
    throw ConfigError(place.text() + ": not TOML: " + reason_of(error));
  }
}

std::optional<TomlValue> parse_toml_value(std::string_view text, const SourceLocation& place) {
  if (text.find_first_of("\n\r") != std::string_view::npos) return std::nullopt;
  const size_t last = text.find_last_not_of(" \t");
  if (last == std::string_view::npos || text[last] == ',') return std::nullopt;
  try {
    // Brackets turn a comment or a second value into an error.
    std::vector<TomlMember> members =
        parse_toml("value = [" + std::string(text) + "]", place.origin);
    if (members.size() != 1 || members[0].name != "value") return std::nullopt;
    if (members[0].value.elements.size() != 1) return std::nullopt;
    TomlValue value = std::move(members[0].value.elements[0]);
    value.place = place;
    for (TomlValue& element : value.elements) element.place = place;
    return value;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

}  // namespace longshore
