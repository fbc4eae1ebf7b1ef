// LiveLine: how a run shows its progress: a few lines that are redrawn in place on a terminal,
// plain lines every `log.every_steps` elsewhere. Owned by rank 0's trainer, one thread. Writes to
// stderr.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace longshore {

// What a line can show; absent fields are left out.
struct LiveStatus {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0.0;
  double lr = 0.0;
  double grad_norm = 0.0;
  double tokens_per_second = 0.0;
  std::optional<double> aux_loss = {};
  // The busiest expert over its layer's mean, experts without a token, and the entropy in nats.
  struct Router {
    double most = 0.0;
    int64_t idle = 0;
    double entropy = 0.0;
  };
  std::optional<Router> router = {};
  bool skipped = false;                   // the step was skipped: its loss or norm was not finite
  std::optional<double> mfu = {};         // 0..1
  std::optional<double> plan_ratio = {};  // measured over planned rate
  std::string wall = {};                  // the resource that limits; empty = not known
  Bytes device_bytes = 0, device_plan_bytes = 0;
  Bytes host_bytes = 0, host_plan_bytes = 0;
  Bytes drive_bytes = 0;  // read and written by the step
  double step_seconds = 0.0;
  // What compute waited for, by lane, in seconds of the step; the rest of it is compute.
  std::vector<std::pair<std::string, double>> waits = {};
  std::optional<double> eta_seconds = {};
};

struct LiveLineOptions {
  int fd = 2;
  bool terminal = false;  // redraw in place
  bool colour = false;
  int columns = 80;  // where the terminal does not say; the same for rows
  int rows = 24;
  int64_t every_steps = 1;  // plain lines only: steps between two of them
};

// "step 120/4000  loss 1.8342  lr 1.9e-05  norm 0.71  2 431 tok/s  ... ETA 14:02" in at most
// `columns` characters (0 = any number): fields go, the least telling first, until it fits. Colour
// adds escape sequences that take no room.
std::string format_live_line(const LiveStatus& status, int columns, bool colour);

// What a terminal of `rows` rows shows, in up to four lines: progress, numbers, where the step's
// time went with the lane that compute waited for most, memory against plan. One line where there
// are fewer than six rows. No line is longer than `columns`.
std::vector<std::string> format_display(const LiveStatus& status, int columns, int rows,
                                        bool colour);

// "2 431": groups of three digits.
std::string format_count(int64_t count);

class LiveLine {
 public:
  explicit LiveLine(const LiveLineOptions& options) : options_(options) {}
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;
  // Ends the display on a terminal, so that what follows starts on a new one.
  ~LiveLine() { finish(); }

  // Terminal, colour and width of stderr as they are now.
  static LiveLineOptions options_of_stderr(int64_t every_steps);

  void show(const LiveStatus& status);
  // Removes the display from the terminal, so that a message can be printed; `show` draws it again.
  void clear();
  // Leaves the last one standing.
  void finish();

 private:
  struct Size {
    int columns, rows;
  };
  Size size_now() const;
  // Where the display begins, and nothing below it.
  std::string back_to_its_begin() const;
  void write(const std::string& text);

  LiveLineOptions options_;
  size_t drawn_ = 0;  // lines that stand on the terminal; the cursor is behind the last
};

}  // namespace longshore
