// Log and output: messages for the user go to standard error, one line each; results of a command
// go to standard output.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace longshore {

// Log: messages for the user on stderr, one line each; data goes to stdout. Any thread. Each
// message is one write, so that lines do not mix.

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };

std::string_view name_of(LogLevel level);
std::optional<LogLevel> parse_log_level(std::string_view name);

enum class LogColour : uint8_t { kAuto, kNever, kAlways };

// Drops messages above `level`; the default is info. Returns the previous level.
LogLevel set_log_level(LogLevel level);
// kAuto means colour only on a terminal whose TERM is not "dumb", and without NO_COLOR.
void set_log_colour(LogColour colour);
// Returns whether stderr gets colour; for other code that draws there.
bool log_uses_colour();

void log_message(LogLevel level, std::string_view text);
inline void log_error(std::string_view text) {
  log_message(LogLevel::kError, text);
}
inline void log_warning(std::string_view text) {
  log_message(LogLevel::kWarning, text);
}
inline void log_info(std::string_view text) {
  log_message(LogLevel::kInfo, text);
}
inline void log_debug(std::string_view text) {
  log_message(LogLevel::kDebug, text);
}

// Output: results of a command on standard output; messages go through log.h. Main thread.

// Formats as printf does and escapes control characters in the result (texts.h).
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
// Prints the text unchanged: for JSON, which escapes by itself, and for our own colours.
void print_raw(std::string_view text);

// Flushes standard output to its file or pipe. Throws IoError on failure.
void flush_output();

}  // namespace longshore
