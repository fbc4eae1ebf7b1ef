#include "trainer/use/evaluator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/errors.h"
#include "base/texts.h"
#include "offload/engine/step_totals.h"
#include "trainer/data/run_data.h"
#include "trainer/directory/metrics_reader.h"

namespace longshore {

Evaluation evaluate(Engine& engine, const SequenceData& data, int64_t max_sequences,
                    int64_t micro_batch, const StopCheck& stop, const PairObjective* objective) {
  const auto begin = std::chrono::steady_clock::now();
  const StepBatches batches =
      make_eval_batches(*data.dataset, data.table, max_sequences, micro_batch);
  const std::vector<HostBatch> views = host_batches(batches.micro_batches, objective);
  const RankGroups& groups = engine.groups();
  const auto ranks = static_cast<size_t>(groups.topology.ranks);
  const std::vector<HostBatch> own = share_of(views, groups.rank, groups.topology.ranks);
  const auto at_once = static_cast<size_t>(engine.plan().step.micro_batches);
  const size_t most = (views.size() + ranks - 1) / ranks;  // all ranks run equal rounds
  LossSum mine;
  for (size_t first = 0; first < most; first += at_once) {
    stop();
    const size_t begin = std::min(first, own.size());
    const std::span<const HostBatch> part =
        std::span(own).subspan(begin, std::min(at_once, own.size() - begin));
    const LossSum sum = engine.evaluate(engine.batches().load(part));
    mine.loss += sum.loss;
    mine.trained += sum.trained;
    mine.preference += sum.preference;
  }
  const LossSum all = sum_over_ranks(groups, mine);
  Evaluation result;
  result.tokens = batches.tokens;
  result.trained_tokens = batches.trained_tokens;
  result.loss = all.loss / static_cast<double>(loss_terms(batches, /*pairs=*/objective != nullptr));
  result.preference = all.preference;
  result.perplexity = std::exp(result.loss);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::optional<PreferenceMeans> means_of_pairs(const Evaluation& evaluation) {
  if (evaluation.preference.pairs == 0) return std::nullopt;
  return means_of(evaluation.preference);
}

std::string describe_quality(const Evaluation& evaluation) {
  const std::optional<PreferenceMeans> means = means_of_pairs(evaluation);
  if (!means) return formatted("perplexity %.2f", evaluation.perplexity);
  return formatted("margin %.4f  accuracy %.1f %%", means->margin, 100.0 * means->accuracy);
}

bool EvalTracker::record(double loss) {
  if (std::isfinite(loss) && loss < best_loss_) {
    best_loss_ = loss;
    without_gain_ = 0;
    return true;
  }
  ++without_gain_;
  return false;
}

EvalTracker EvalTracker::of_metrics(const std::string& path) {
  EvalTracker tracker;
  read_metrics(path, {"eval"}, [&tracker](const MetricsLine& line) {
    tracker.record(line.number("loss").value_or(std::nan("")));
    return true;
  });
  return tracker;
}

std::string EvalTracker::text() const {
  return formatted("%a %lld", best_loss_, static_cast<long long>(without_gain_));
}

EvalTracker EvalTracker::of_text(const std::string& text) {
  EvalTracker tracker;
  long long without_gain = 0;
  LONGSHORE_CHECK(std::sscanf(text.c_str(), "%la %lld", &tracker.best_loss_, &without_gain) == 2)
      << text;
  tracker.without_gain_ = without_gain;
  return tracker;
}

}  // namespace longshore
