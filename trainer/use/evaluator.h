// The mean loss over a set of sequences with the engine's current parameters, KTO's kl,
// and the lowest loss of a run so far. Called by the engine's thread.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offload/engine/engine.h"
#include "trainer/data/run_data.h"
#include "trainer/metrics/metrics.h"

namespace longshore {

struct Evaluation {
  double loss = 0.0;  // mean over the trained tokens of the set, or over its pairs
  double perplexity = 1.0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  double terms = 0.0;  // the divisor of the loss
  double seconds = 0.0;
  LossSum sums = {};
  std::shared_ptr<const Loss> summed_loss = {};  // the loss whose sums these are
};

// Returns the share of trained tokens whose target has the highest score; empty without a loss over
// tokens.
std::optional<double> token_accuracy(const Evaluation& evaluation);

// Returns the evaluation's record, without its step and its sets.
EvalRecord record_of(const Evaluation& evaluation);

// Returns "perplexity 12.34  accuracy 56.7 %", or the figures that the loss has in place of
// perplexity, such as "margin 0.1234  accuracy 75.0 %" for a loss over pairs.
std::string describe_quality(const Evaluation& evaluation);

// Evaluates at most `max_sequences` sequences in file order; 0: all. Applies pending updates first.
// Calls `stop` between groups of micro-batches.
Evaluation evaluate(Engine& engine, const SequenceData& data, const Objective& objective,
                    int64_t max_sequences, int64_t micro_batch, const StopCheck& stop);

// Returns KTO's kl over all ranks' mismatched rows of a step or an evaluation ([Note: preference
// losses]); `mismatched` is this rank's share. Applies pending updates first. Calls `stop` as
// evaluate does.
double compute_kl(Engine& engine, StepBatches mismatched, const Objective& objective,
                  const StopCheck& stop);

// The results of several sets, and the result that a run is judged by: that of the unnamed set,
// else the means over all sets.
struct Evaluations {
  Evaluation whole;
  std::vector<std::pair<std::string, Evaluation>> named;
};
Evaluations evaluate_sets(Engine& engine, const std::vector<EvaluationSet>& sets,
                          int64_t max_sequences, int64_t micro_batch, const StopCheck& stop);

// The code of the event after which a run is evaluated on other data.
inline constexpr const char* kOtherEvaluationData = "other_evaluation_data";

// The lowest evaluation loss of a run so far, and the number of evaluations since. A resumed run
// restores it from metrics.jsonl, which is cut at the step that the run resumes from.
class EvalTracker {
 public:
  // Adds a loss and returns whether it is the lowest so far; a non-finite loss never is.
  bool record(double loss);
  double best_loss() const { return best_loss_; }
  // Returns the number of evaluations since the lowest loss.
  int64_t without_gain() const { return without_gain_; }

  // Reads the evaluations of a metrics file since the last event of the code kOtherEvaluationData;
  // a missing file has none.
  static EvalTracker of_metrics(const std::string& path);
  // Convert to text for other ranks, and back.
  std::string text() const;
  static EvalTracker of_text(const std::string& text);

 private:
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t without_gain_ = 0;
};

}  // namespace longshore
