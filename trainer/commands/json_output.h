// What `--json` prints on standard output. Bytes that are no UTF-8 (paths may have some) become
// U+FFFD: a reader gets JSON always. Main thread.
#pragma once

#include "base/json.h"

namespace longshore {

// One value over several lines.
void print_json(const Json& value);
// One value on a line of its own: JSON lines.
void print_json_line(const Json& value);
std::string json_line(const Json& value);

}  // namespace longshore
