#include "base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr std::chrono::seconds kSilent{2};
constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::seconds kPlainLines{15};
constexpr size_t kUnknownColumns = 80;

std::atomic<bool> g_hushed{false};
std::atomic<bool> g_unwanted{false};
std::atomic<bool> g_drawn{false};

size_t columns() {
  struct winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kUnknownColumns;
}

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
    if (line.size() >= columns()) line.resize(columns() - 1);
    g_drawn = true;
    draw("\r\x1b[K" + line);
  } else {
    log_info(line);
  }
  showing_ = false;
}

}  // namespace longshore
