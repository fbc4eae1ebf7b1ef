// Progress: long work says how far it is, on stderr, with its rate and what is left: nothing for
// the first two seconds; then on a terminal a line that is redrawn, elsewhere a plain line now and
// then. Made by whoever does the work; `add` from any thread. Where processes work together, one of
// them shows it.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "base/bytes.h"

namespace longshore {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // `total` bytes; 0: not known. `now`: the clock.
  Progress(std::string what, Bytes total, Clock::time_point (*now)() = Clock::now);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // Takes its line from the terminal.
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

// "exporting  34 %  1.2 of 3.4 GiB  850.0 MiB/s  ETA 0:03"
std::string format_progress(const std::string& what, Bytes done, Bytes total, double seconds);

// Of a process beside the one that shows it.
void hush_progress();

// Whether the user wants to be told; the log's level says so.
void want_progress(bool wanted);

// Whether stderr is a terminal where a line can be drawn again: a dumb one knows no escape
// sequences, and gets plain lines.
bool stderr_redraws();

// Takes a line of progress from the terminal, before something else is written there.
void clear_progress_line();

}  // namespace longshore
