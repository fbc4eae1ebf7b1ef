#include "base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/errors.h"
#include "base/progress.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"error", "warning", "info", "debug"};
// Red, yellow, none and dim, in the order of kNames.
constexpr std::array<std::string_view, 4> kColours = {"\x1b[31m", "\x1b[33m", "", "\x1b[2m"};
constexpr std::string_view kPlain = "\x1b[0m";

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogColour> g_colour{LogColour::kAuto};

bool terminal_takes_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  return stderr_redraws() && (no_color == nullptr || *no_color == '\0');
}

// Returns the prefix of the level: "error: ", "warning: ", "" or "debug: ".
std::string prefix(LogLevel level) {
  if (level == LogLevel::kInfo) return "";
  const auto index = static_cast<size_t>(level);
  const std::string name = std::string(kNames[index]) + ":";
  if (!log_uses_colour()) return name + " ";
  return std::string(kColours[index]) + name + std::string(kPlain) + " ";
}

// Drops a message that cannot be written, because no channel is left to report that.
void write_line(const std::string& line) {
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t put = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (put < 0 && errno != EINTR) return;
    if (put > 0) rest.remove_prefix(static_cast<size_t>(put));
  }
}

}  // namespace

std::string_view name_of(LogLevel level) {
  return kNames[static_cast<size_t>(level)];
}

std::optional<LogLevel> parse_log_level(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

LogLevel set_log_level(LogLevel level) {
  want_progress(level >= LogLevel::kInfo);
  return g_level.exchange(level);
}
void set_log_colour(LogColour colour) {
  g_colour = colour;
}

bool log_uses_colour() {
  switch (g_colour.load()) {
    case LogColour::kNever:
      return false;
    case LogColour::kAlways:
      return true;
    case LogColour::kAuto:
      break;
  }
  static const bool kTerminal = terminal_takes_colour();
  return kTerminal;
}

void log_message(LogLevel level, std::string_view text) {
  if (level > g_level.load()) return;
  const std::string start = prefix(level);
  std::string lines = start;
  // The message's author indents its later lines; they get no prefix.
  lines += printable_lines(text);
  lines += '\n';
  clear_progress_line();
  write_line(lines);
}

void print_out(const char* format, ...) {
  va_list values;
  va_start(values, format);
  const std::string text = formatted_list(format, values);
  va_end(values);
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
