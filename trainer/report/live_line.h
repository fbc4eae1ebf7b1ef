// LiveLine: shows a run's progress on stderr: a few lines redrawn in place on a terminal, plain
// lines every `log.every_steps` otherwise. Owned by rank 0's trainer; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"

namespace longshore {

// LiveStatus holds the values that a line can show. Absent optional fields are left out.
struct LiveStatus {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0.0;
  std::optional<double> mean_loss = {};  // exponential mean of the last steps
  double epoch = 0.0;                    // after the step; 0: unknown
  double lr = 0.0;
  double grad_norm = 0.0;
  double tokens_per_second = 0.0;
  std::optional<double> aux_loss = {};
  // The busiest expert's load over its layer's mean, idle experts, and the entropy in nats.
  struct Router {
    double most = 0.0;
    int64_t idle = 0;
    double entropy = 0.0;
  };
  std::optional<Router> router = {};
  // A loss over pairs has the mean margin of rewards, and the share of pairs with one above 0.
  struct Pairs {
    double margin = 0.0;
    double accuracy = 0.0;
  };
  std::optional<Pairs> pairs = {};
  bool skipped = false;                   // the step was skipped: its loss or norm was not finite
  std::optional<double> mfu = {};         // 0..1
  std::optional<double> plan_ratio = {};  // measured over planned rate
  std::string wall = {};                  // the limiting resource; empty if unknown
  Bytes device_bytes = 0, device_plan_bytes = 0;
  Bytes host_bytes = 0, host_plan_bytes = 0;
  Bytes drive_bytes = 0;  // read and written by the step
  double step_seconds = 0.0;
  // Seconds of the step that compute waited for each lane. The rest of the step is compute.
  std::vector<std::pair<std::string, double>> waits = {};
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
std::string format_live_line(const LiveStatus& status, int columns, bool colour);

// Returns up to four lines for a terminal of `rows` rows: progress, numbers, compute time against
// the longest waits by lane, memory against plan. Below six rows it is one line. No line is longer
// than `columns`.
std::vector<std::string> format_display(const LiveStatus& status, int columns, int rows,
                                        bool colour);

class LiveLine {
 public:
  explicit LiveLine(const LiveLineOptions& options) : options_(options) {}
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;
  // Ends the display on a terminal, so that later output starts on a new line.
  ~LiveLine() { finish(); }

  // Reads terminal, colour and width of stderr at the time of the call.
  static LiveLineOptions options_of_stderr(int64_t every_steps);

  void show(const LiveStatus& status);
  // Removes the display from the terminal so that a message can be printed. `show` draws it again.
  void clear();
  // Leaves the last display on the terminal and moves the cursor to a new line.
  void finish();
  // Leaves the display where something else was printed below it and ended its line.
  void leave() { drawn_ = 0; }

 private:
  TerminalSize size_now() const;
  // Returns the escape sequence that moves to the display's first line and erases everything below.
  std::string back_to_its_begin() const;
  void write(const std::string& text);

  LiveLineOptions options_;
  size_t drawn_ = 0;  // display lines on the terminal; the cursor is behind the last one
};

}  // namespace longshore
