#include "base/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/errors.h"
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
  const auto columns =
      static_cast<size_t>(stderr_redraws() ? terminal_size(STDERR_FILENO).columns : 0);
  const size_t before =
      level == LogLevel::kInfo ? 0 : kNames[static_cast<size_t>(level)].size() + 2;
  // The message's author indents its later lines; they get no prefix.
  lines += wrapped_lines(printable_lines(text), columns > before ? columns - before : 0);
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

namespace {

constexpr std::chrono::seconds kSilent{2};
constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::seconds kPlainLines{15};
constexpr size_t kUnknownColumns = 80;

std::atomic<bool> g_hushed{false};
std::atomic<bool> g_unwanted{false};
std::atomic<bool> g_drawn{false};

// Ignores failures: progress that cannot be shown must not end the work.
void draw(const std::string& text) {
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string format_progress(const std::string& what, Bytes done, Bytes total, double seconds) {
  std::string text = printable(what) + "  ";
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-3);
  if (total > 0) {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    text += std::to_string(static_cast<int>(100.0 * share)) + " %  ";
  }
  text += format_bytes(done) + (total > 0 ? " of " + format_bytes(total) : "") + "  " +
          format_bytes(static_cast<Bytes>(rate)) + "/s";
  if (total > 0 && done > 0) {
    text +=
        "  ETA " + format_duration(static_cast<double>(std::max<Bytes>(0, total - done)) / rate);
  }
  return text;
}

bool stderr_redraws() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

TerminalSize terminal_size(int fd) {
  struct winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return {size.ws_col, size.ws_row};
}

void hush_progress() {
  g_hushed = true;
}

void want_progress(bool wanted) {
  g_unwanted = !wanted;
}

bool progress_is_wanted() {
  return !g_unwanted;
}

void clear_progress_line() {
  if (g_drawn.exchange(false)) draw("\r\x1b[K");
}

Progress::Progress(std::string what, Bytes total, Clock::time_point (*now)())
    : what_(std::move(what)), total_(total), now_(now), begun_(now()), next_(begun_ + kSilent) {}

Progress::~Progress() {
  clear_progress_line();
}

void Progress::add(Bytes done) {
  done_ += done;
  show();
}

void Progress::show() {
  if (g_hushed || g_unwanted) return;
  const Clock::time_point now = now_();
  // A thread that finds another one at it returns to its work.
  if (now < next_.load() || showing_.exchange(true)) return;
  static const bool kRedraws = stderr_redraws();
  next_ = now + (kRedraws ? Clock::duration(kRedraw) : Clock::duration(kPlainLines));
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  std::string line = format_progress(what_, done_, total_, seconds);
  if (kRedraws) {
    const auto known = static_cast<size_t>(terminal_size(STDERR_FILENO).columns);
    const size_t columns = known > 0 ? known : kUnknownColumns;
    if (line.size() >= columns) line.resize(columns - 1);
    g_drawn = true;
    draw("\r\x1b[K" + line);
  } else {
    log_info(line);
  }
  showing_ = false;
}

}  // namespace longshore
