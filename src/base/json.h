// Json: a strict reader for JSON from outside. Pure function, any thread.
// Keys keep their order. Looking a key up scans its object: walk large objects instead.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

using Json = nlohmann::ordered_json;

// What a text may cost at most.
struct JsonLimits {
  Bytes max_bytes = 64 * kMiB;
  int max_depth = 64;              // of nested arrays and objects
  int64_t max_values = 8'000'000;  // members and elements, nested ones included
};

// DataError with `origin` (the file's path), line and reason for: text over a limit, any departure
// from RFC 8259, trailing bytes, NUL, invalid UTF-8, lone surrogates, the same key twice in an
// object, integers outside 64 bits, reals outside fp64.
Json parse_json(std::string_view text, const JsonLimits& limits, const std::string& origin);

// Reads the file and parses it.
Json read_json_file(const std::string& path, const JsonLimits& limits);

}  // namespace longshore
