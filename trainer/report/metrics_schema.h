// The lines of metrics.jsonl as a JSON Schema, from a table of kinds and keys, for programs that
// read them. Pure function, any thread.
#pragma once

#include <string>

namespace longshore {

// For `config schema --metrics`: a JSON Schema (draft 2020-12) of one line. Later versions may add
// keys, so others are allowed.
std::string metrics_schema();

}  // namespace longshore
