// Progress: reports the rate and remaining time of long work on stderr. It is silent for two
// seconds; then it redraws one line on a terminal, or logs a plain line now and then. The code that
// does the work owns it; any thread may call `add`. Of several processes that work together, only
// one shows progress.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "base/bytes.h"

namespace longshore {

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
  std::atomic<Clock::time_point> next_;  // when it is shown again
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

// Clears the progress line before other output goes to the terminal.
void clear_progress_line();

}  // namespace longshore
