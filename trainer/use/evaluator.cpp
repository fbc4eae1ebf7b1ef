#include "trainer/use/evaluator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <span>

#include "base/errors.h"
#include "base/measurement.h"
#include "base/texts.h"
#include "model/losses/losses.h"
#include "offload/engine/step_totals.h"
#include "trainer/data/run_data.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/metrics/metrics.h"

namespace longshore {

namespace {

// Evaluates a rank's batches, of `count` on all ranks, in passes of the planned number of
// micro-batches. All ranks run equal passes. `use` gets the sums and the micro-batches of each.
void run_passes(Engine& engine, std::span<const Batch> own, int64_t count,
                const std::shared_ptr<const Loss>& loss, const StopCheck& stop,
                const std::function<void(const LossSum&, std::span<const Batch>)>& use) {
  const int64_t ranks = engine.groups().topology.ranks;
  const auto at_once = static_cast<size_t>(engine.plan().step.micro_batches);
  const auto most = static_cast<size_t>((count + ranks - 1) / ranks);
  for (size_t first = 0; first < most; first += at_once) {
    stop();
    const size_t begin = std::min(first, own.size());
    const std::span<const Batch> part = own.subspan(begin, std::min(at_once, own.size() - begin));
    use(engine.evaluate(engine.batches().load(part, loss)), part);
  }
}

}  // namespace

double compute_kl(Engine& engine, StepBatches mismatched, const Objective& objective,
                  const StopCheck& stop) {
  set_references(mismatched.micro_batches, objective, objective.references.size() / 2);
  std::vector<double> sums = {0.0, 0.0};  // of r, and the rows
  const auto use = [&](const LossSum&, std::span<const Batch> part) {
    for (size_t b = 0; b < part.size(); ++b) {
      const std::vector<double>& logps = engine.document_logps()[b];
      const std::vector<double>& references = part[b].columns.get<kReferenceLogpColumn>();
      for (size_t d = 0; d < logps.size(); ++d) sums[0] += logps[d] - references[d];
      sums[1] += static_cast<double>(logps.size());
    }
  };
  run_passes(engine, mismatched.micro_batches, mismatched.micro_batch_count, objective.loss, stop,
             use);
  // HOST WAIT: the gradient of every row depends on the kl of all ranks' rows.
  if (Communicator* const all = engine.groups().all; all != nullptr) {
    all->all_reduce(sums, {"kl", std::nullopt}).wait();
  }
  return kl_of(sums[0], sums[1]);
}

Evaluation evaluate(Engine& engine, const SequenceData& data, const Objective& objective,
                    int64_t max_sequences, int64_t micro_batch, const StopCheck& stop) {
  const auto begin = std::chrono::steady_clock::now();
  const auto batches_of = [&](const Dataset& dataset) {
    const RankGroups& groups = engine.groups();
    return make_eval_batches(dataset, data.table, max_sequences, micro_batch,
                             {groups.rank, groups.topology.ranks});
  };
  StepBatches batches = batches_of(*data.dataset);
  set_references(batches.micro_batches, objective);
  if (data.mismatched != nullptr) {
    set_kl(batches.micro_batches,
           compute_kl(engine, batches_of(*data.mismatched), objective, stop));
  }
  LossSum mine;
  run_passes(engine, batches.micro_batches, batches.micro_batch_count, objective.loss, stop,
             [&](const LossSum& sum, std::span<const Batch>) { mine += sum; });
  Evaluation result;
  result.sums = sum_over_ranks(engine.groups(), mine);
  result.tokens = batches.tokens;
  result.trained_tokens = batches.trained_tokens;
  result.summed_loss = objective.loss;
  result.terms = loss_terms(batches, *objective.loss);
  result.loss = result.sums.loss / result.terms;
  result.perplexity = std::exp(result.loss);
  result.seconds = seconds_since(begin);
  return result;
}

Evaluations evaluate_sets(Engine& engine, const std::vector<EvaluationSet>& sets,
                          int64_t max_sequences, int64_t micro_batch, const StopCheck& stop) {
  Evaluations results;
  Evaluation sums;
  double terms = 0.0;
  for (const EvaluationSet& set : sets) {
    const Evaluation result =
        evaluate(engine, set.data, *set.objective, max_sequences, micro_batch, stop);
    sums.summed_loss = result.summed_loss;
    terms += result.terms;
    sums.loss += result.loss * result.terms;
    sums.tokens += result.tokens;
    sums.trained_tokens += result.trained_tokens;
    sums.sums += result.sums;
    sums.seconds += result.seconds;
    if (set.name.empty()) {
      results.whole = result;
    } else {
      results.named.emplace_back(set.name, result);
    }
  }
  if (!sets.empty() && sets.front().name.empty()) {
    results.whole.seconds = sums.seconds;
    return results;
  }
  sums.loss /= terms;
  sums.perplexity = std::exp(sums.loss);
  results.whole = sums;
  return results;
}

EvalRecord record_of(const Evaluation& evaluation) {
  const Loss& loss = *evaluation.summed_loss;
  EvalRecord record{.loss = evaluation.loss,
                    .perplexity = evaluation.perplexity,
                    .token_accuracy = token_accuracy(evaluation),
                    .tokens = evaluation.tokens,
                    .seconds = evaluation.seconds,
                    .figures = loss.figures(evaluation.sums)};
  if (loss.traits().kind != LossKind::kSft) record.perplexity.reset();
  return record;
}

std::optional<double> token_accuracy(const Evaluation& evaluation) {
  return evaluation.sums.tokens.accuracy();
}

std::string describe_quality(const Evaluation& evaluation) {
  const EvalRecord record = record_of(evaluation);
  std::string text;
  const auto append = [&text](const std::string& part) {
    text += (text.empty() ? "" : "  ") + part;
  };
  const auto append_figures = [&](const auto& figures) {
    for (const LossFigure& figure : figures) {
      const double* const value = figure_of(record.figures, figure.key);
      if (value == nullptr || figure.short_name == nullptr) continue;
      append(std::string(figure.short_name) + " " +
             (figure.percent ? formatted("%.1f %%", 100.0 * *value) : format_loss(*value)));
    }
  };
  if (record.perplexity) append(formatted("perplexity %.2f", *record.perplexity));
  append_figures(kTokenFigures);
  append_figures(kAnswerFigures);
  if (record.token_accuracy) append(formatted("accuracy %.1f %%", 100.0 * *record.token_accuracy));
  return text;
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
  read_metrics(path, {"eval", "event"}, [&tracker](const MetricsLine& line) {
    if (line.kind == "eval") {
      tracker.record(line.number("loss").value_or(std::nan("")));
    } else if (line.object.contains("code") && line.object["code"] == kOtherEvaluationData) {
      tracker = {};
    }
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
