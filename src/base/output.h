// Output: results of a command on standard output; messages go through log.h. Main thread.
#pragma once

#include <string_view>

namespace longshore {

// Formats as printf does and escapes control characters in the result (printable.h).
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
// Prints the text unchanged: for JSON, which escapes by itself, and for our own colours.
void print_raw(std::string_view text);

// Flushes standard output to its file or pipe. Throws IoError on failure.
void flush_output();

}  // namespace longshore
