// Json: a strict reader for untrusted JSON. Pure function, any thread. Keys keep their order. A
// lookup scans its object, so iterate over large objects instead.
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

// Reads the file and parses it as parse_json does.
Json read_json_file(const std::string& path, const JsonLimits& limits);

}  // namespace longshore
