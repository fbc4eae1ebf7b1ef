// LiveLine: shows a run's progress on stderr: a few lines redrawn in place on a terminal, plain
// lines every `log.every_steps` otherwise. Owned by rank 0's trainer; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "trainer/metrics/metrics.h"

namespace longshore {

// LiveRun: what a display shows in addition to the record of a step.
struct LiveRun {
  int64_t total_steps = 0;
  std::optional<double> mean_loss = {};  // exponential mean of the last steps
  std::string wall = {};                 // the limiting resource; empty if unknown
  Bytes host_plan_bytes = 0;
  std::optional<double> eta_seconds = {};
};

struct LiveLineOptions {
  int fd = 2;
  bool terminal = false;  // redraw in place
  bool colour = false;
  bool quiet = false;  // show nothing
  int columns = 80;    // used if the terminal reports no size; `rows` too
  int rows = 24;
  int64_t every_steps = 1;  // steps between two plain lines
};

// Returns "step 120/4000  loss 1.8342  lr 1.9e-05  norm 0.71  2 431 tok/s  ... ETA 14:02" in at
// most `columns` characters (0 = no limit). The least important fields are dropped until it fits.
// Escape sequences for colour do not count.
std::string format_live_line(const StepRecord& step, const LiveRun& run, int columns, bool colour);

// Returns up to four lines for a terminal of `rows` rows: progress, numbers, compute time against
// the longest waits by lane, memory against plan. Below six rows it is one line. No line is longer
// than `columns`.
std::vector<std::string> format_display(const StepRecord& step, const LiveRun& run, int columns,
                                        int rows, bool colour);

class LiveLine {
 public:
  explicit LiveLine(const LiveLineOptions& options) : options_(options) {}
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;
  // Ends the display on a terminal, so that later output starts on a new line.
  ~LiveLine() { finish(); }

  // Reads terminal, colour and width of stderr at the time of the call.
  static LiveLineOptions options_of_stderr(int64_t every_steps);

  void show(const StepRecord& step, const LiveRun& run);
  // Removes the display from the terminal so that a message can be printed. `show` draws it again.
  void clear();
  // Leaves the last display on the terminal and moves the cursor to a new line.
  void finish();
  // Removes the display together with `text` that other code printed below it (a line end and whole
  // lines), and prints `text` again. `show` then draws the display below it.
  void make_room_for(std::string_view text);

 private:
  TerminalSize size_now() const;
  // Returns the escape sequence that moves to the display's first line and erases everything below.
  std::string back_to_its_begin() const;
  void write(const std::string& text);

  LiveLineOptions options_;
  size_t drawn_ = 0;  // display lines on the terminal; the cursor is after the last one
};

}  // namespace longshore
