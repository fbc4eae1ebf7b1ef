// Log and output: messages for the user go to standard error, one line each; results of a command
// go to standard output.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

// Messages for the user on stderr, one line each. Any thread. Each message is one write, so that
// lines do not mix.

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

// Results of a command on standard output. Main thread.

// Formats as printf does and escapes control characters in the result (texts.h).
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
// Prints the text unchanged: for JSON, which is escaped already, and for text with colours.
void print_raw(std::string_view text);

// Flushes standard output to its file or pipe. Throws IoError on failure.
void flush_output();

// Progress: reports the rate and remaining time of long work on stderr. It is silent for two
// seconds; then it redraws one line on a terminal, or logs a plain line now and then. The code that
// does the work owns it; any thread may call `add`. Of several processes that work together, only
// one shows progress.

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // `total` is in bytes, 0 if unknown; `now` reads the clock.
  Progress(std::string what, Bytes total, Clock::time_point (*now)() = Clock::now);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // Clears the progress line on the terminal.
  ~Progress();

  void add(Bytes done);

 private:
  void show();

  const std::string what_;
  const Bytes total_;
  Clock::time_point (*const now_)();
  const Clock::time_point begun_;
  std::atomic<Bytes> done_{0};
  std::atomic<Clock::time_point> next_;  // time of the next update of the display
  std::atomic<bool> showing_{false};
};

// Formats a line: "exporting  34 %  1.2 of 3.4 GiB  850.0 MiB/s  ETA 0:03".
std::string format_progress(const std::string& what, Bytes done, Bytes total, double seconds);

// Silences this process, because another process shows the progress.
void hush_progress();

// Enables or disables progress; the log level decides.
void want_progress(bool wanted);
bool progress_is_wanted();

// Returns whether stderr is a terminal that can redraw a line. A dumb terminal knows no escape
// sequences and gets plain lines.
bool stderr_redraws();

// Returns the size of the terminal behind `fd` in characters; zeros if it is none or unknown.
struct TerminalSize {
  int columns = 0, rows = 0;
};
TerminalSize terminal_size(int fd);

// Clears the progress line before other output goes to the terminal.
void clear_progress_line();

}  // namespace longshore
