// Log: messages for the user on stderr, one line each; data goes to stdout. Any thread. Each
// message is one write, so that lines do not mix.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace longshore {

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

}  // namespace longshore
