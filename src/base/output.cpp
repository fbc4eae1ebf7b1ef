#include "base/output.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {

void print_out(const char* format, ...) {
  va_list values;
  va_start(values, format);
  va_list again;
  va_copy(again, values);
  const int bytes = std::vsnprintf(nullptr, 0, format, values);
  va_end(values);
  std::string text(static_cast<size_t>(bytes < 0 ? 0 : bytes) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, again);
  va_end(again);
  text.pop_back();
  print_raw(printable_lines(text));
}

void print_raw(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw IoError("write", "standard output", errno);
  }
}

void flush_output() {
  if (std::fflush(stdout) != 0) throw IoError("write", "standard output", errno);
}

}  // namespace longshore
