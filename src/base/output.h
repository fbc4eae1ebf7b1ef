// Output: results of a command on standard output; messages go through log.h. Main thread.
#pragma once

#include <string_view>

namespace longshore {

// Formats as printf does. Control characters of what is put in are escaped (printable.h).
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
// Text as it is: for JSON, which escapes by itself, and for colours of our own.
void print_raw(std::string_view text);

// Everything printed has reached the file or pipe behind standard output, or IoError.
void flush_output();

}  // namespace longshore
