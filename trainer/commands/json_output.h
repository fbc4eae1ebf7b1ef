// JsonOutput: prints the result of `--json` on standard output. Bytes that are not UTF-8, as in
// some paths, become U+FFFD so that the output is always valid JSON. Main thread.
#pragma once

#include "base/json.h"

namespace longshore {

// Prints one value over several lines.
void print_json(const Json& value);
// Prints one value on a single line (JSON lines).
void print_json_line(const Json& value);
std::string json_line(const Json& value);

}  // namespace longshore
