// Evaluation: the mean loss over a set of sequences, with the engine's current parameters, and the
// lowest loss of a run so far. The thread that calls the engine.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "offload/engine/engine.h"
#include "trainer/data/run_data.h"

namespace longshore {

struct Evaluation {
  double loss = 0.0;  // over all trained tokens of the set
  double perplexity = 1.0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  double seconds = 0.0;
};

// At most `max_sequences` sequences, in file order; 0 = all. Pending updates are applied first.
// `stop` is asked between groups of micro-batches.
Evaluation evaluate(Engine& engine, const SequenceData& data, int64_t max_sequences,
                    int64_t micro_batch, const StopCheck& stop);

// The lowest evaluation loss of a run so far, and how long ago it was. Its whole state can be read
// from metrics.jsonl, which is cut at the step that a run resumes from.
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
