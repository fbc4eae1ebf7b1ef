// Evaluation: the mean loss over a set of sequences, with the engine's current parameters.
// The thread that calls the engine.
#pragma once

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

}  // namespace longshore
