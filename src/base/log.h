// Log: messages for the user, on stderr, one line each; data goes to stdout and never through here.
// Any thread; a message is written in one call, so that lines do not mix.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace longshore {

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };

std::string_view name_of(LogLevel level);
std::optional<LogLevel> parse_log_level(std::string_view name);

enum class LogColour : uint8_t { kAuto, kNever, kAlways };

// Messages above `level` are dropped; info until this is called. Returns the level before.
LogLevel set_log_level(LogLevel level);
// kAuto: colour only on a terminal, without NO_COLOR, and where TERM is not "dumb".
void set_log_colour(LogColour colour);
// Whether stderr gets colour; for others who draw there.
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
