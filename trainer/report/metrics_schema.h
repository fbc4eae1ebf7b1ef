// MetricsSchema: the lines of metrics.jsonl as a JSON Schema, built from a table of kinds and keys,
// for programs that read them. Pure function; any thread.
#pragma once

#include <string>

namespace longshore {

// Returns a JSON Schema (draft 2020-12) of one line, for `config schema --metrics`. It allows
// additional keys because later versions may add some.
std::string metrics_schema();

}  // namespace longshore
