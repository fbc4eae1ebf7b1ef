// EvalTracker: the lowest evaluation loss of a run so far, and how long ago it was. Its whole state
// can be read from metrics.jsonl, which is cut at the step that a run resumes from. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace longshore {

class EvalTracker {
 public:
  // Whether the loss is the lowest so far. A loss that is not finite is never.
  bool record(double loss);
  double best_loss() const { return best_loss_; }
  // Evaluations since the lowest loss.
  int64_t without_gain() const { return without_gain_; }

  // What the evaluations of a run's metrics say; nothing for a missing file.
  static EvalTracker of_metrics(const std::string& path);
  // For other ranks, and back.
  std::string text() const;
  static EvalTracker of_text(const std::string& text);

 private:
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t without_gain_ = 0;
};

}  // namespace longshore
