// Json: a strict reader for untrusted JSON, and a writer. Pure functions, any thread. Keys keep
// their order. A lookup scans its object, so iterate over large objects instead.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

using Json = nlohmann::ordered_json;

// The limits of one text.
struct JsonLimits {
  Bytes max_bytes = 64 * kMiB;
  int max_depth = 64;              // of nested arrays and objects
  int64_t max_values = 8'000'000;  // members and elements, nested ones included
};

// Throws DataError with `origin` (the file's path), line and reason for: text over a limit, any
// departure from RFC 8259, trailing bytes, NUL, invalid UTF-8, lone surrogates, duplicate keys in
// an object, integers outside 64 bits, reals outside fp64.
Json parse_json(std::string_view text, const JsonLimits& limits, const std::string& origin);

// Parses a row of data as Python writes it. NaN, infinities and reals outside fp64 become null, as
// in a table. An integer outside 64 bits becomes a binary value, which readers accept neither as a
// number nor as a text. All else is as in parse_json, except that byte numbers in messages count
// "null" in place of these words.
Json parse_python_json(std::string_view text, const JsonLimits& limits, const std::string& origin);

// Reads the file and parses it as parse_json does.
Json read_json_file(const std::string& path, const JsonLimits& limits);

// Returns the text that an object has under `key`; "" if it has none there, or is no object.
std::string member_text(const Json& object, std::string_view key);

// Returns the text of a value: on one line, or with `indent` spaces for each level. Bytes that are
// not UTF-8, as in some paths, become U+FFFD so that it is always valid JSON.
std::string json_text(const Json& value, int indent = -1);

// Converts JSON in Python's dialect to strict JSON. Pure function, any thread.

// Published configuration files hold numbers that JSON or 64 bits cannot: 10^30 for "no limit",
// NaN, Infinity, 1e400. Writes such integers as reals and non-finite reals as strings; a reader
// that needs the number then refuses the string by name. All other text stays unchanged.
std::string python_numbers(std::string_view text);

}  // namespace longshore
