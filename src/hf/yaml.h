// Untrusted YAML as a JSON value, so that its readers read JSON. Pure function,
// any thread.
//
// Users write these files for Python, so plain words have the types that PyYAML's safe loader gives
// them (YAML 1.1): `yes` and `off` are booleans, `017` is fifteen, `1e-4` is a string because it
// has no point, and `<<` merges mappings. What JSON has no form for stays a string: dates,
// infinity, NaN, and integers of more than 64 bits. Keys are strings as they are spelled.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace longshore {

// Returns the text's one document; null for an empty text. The limits count what aliases and merge
// keys repeat, so a short text cannot become a large value. Throws DataError "<origin>: line <n>,
// column <n>: <reason>" for: a text over a limit, any departure from YAML, a key that occurs twice
// in a mapping (PyYAML takes the last), a second document, keys that are no scalars, tags other
// than those of JSON's types, invalid UTF-8, control characters.
Json yaml_to_json(std::string_view text, const JsonLimits& limits, const std::string& origin);

}  // namespace longshore
