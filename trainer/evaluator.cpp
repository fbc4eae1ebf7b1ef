#include "trainer/evaluator.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace longshore {

Evaluation evaluate(Engine& engine, const SequenceData& data, int64_t max_sequences,
                    int64_t micro_batch, const StopCheck& stop) {
  const auto begin = std::chrono::steady_clock::now();
  engine.optimizer().flush();
  const StepBatches batches =
      make_eval_batches(*data.dataset, data.table, max_sequences, micro_batch);
  const std::vector<HostBatch> views = host_batches(batches.micro_batches);
  const auto group = static_cast<size_t>(engine.plan().micro_batches);
  double loss_sum = 0.0;
  for (size_t first = 0; first < views.size(); first += group) {
    stop();
    const std::span<const HostBatch> part =
        std::span(views).subspan(first, std::min(group, views.size() - first));
    loss_sum += engine.runner().evaluate(engine.batches().load(part)).loss;
  }
  Evaluation result;
  result.tokens = batches.tokens;
  result.trained_tokens = batches.trained_tokens;
  result.loss = loss_sum / static_cast<double>(batches.trained_tokens);
  result.perplexity = std::exp(result.loss);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace longshore
