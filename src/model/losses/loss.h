// Loss: what a run minimises, from the log-probabilities of trained positions to the numbers that
// steps and evaluations report. The base class is the weighted sum over trained tokens; each other
// loss is a class beside it. Immutable; the head calls apply() on the compute thread, any thread
// the rest.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/columns.h"
#include "base/loss_kind.h"
#include "base/value_sums.h"
#include "model/losses/token_hits.h"

namespace longshore {

// LossSum: the loss of a micro-batch, of a step or of an evaluation.
struct LossSum {
  // The most sums that a loss has of its own.
  static constexpr size_t kOwnSums = 14;

  double loss = 0.0;     // over trained positions, pairs or rows, weighted, not divided
  int64_t trained = 0;   // number of trained positions
  HitCount tokens = {};  // of a step, or of an evaluation whose loss is over tokens
  // The loss's own sums, packed from a struct that names them. All are 0 on a rank without
  // micro-batches.
  std::array<double, kOwnSums> own = {};

  // Adds the loss's own sums.
  template <typename Sums>
  void add(const Sums& more) {
    static_assert(kValueCount<Sums> <= kOwnSums);
    const auto values = packed_values(more);
    for (size_t i = 0; i < values.size(); ++i) own[i] += values[i];
  }
  // Returns them under their names.
  template <typename Sums>
  Sums named() const {
    return unpacked_values<Sums>(own);
  }

  auto values() {
    return std::tuple_cat(std::tie(loss, trained), tokens.values(),
                          std::apply([](auto&... value) { return std::tie(value...); }, own));
  }
  LossSum& operator+=(const LossSum& other) { return add_values(*this, other); }
};

// LossResult: the loss of a micro-batch.
struct LossResult : LossSum {
  std::vector<double> document_logps = {};  // of a loss over judged answers
};

// ScoredPositions: the trained positions of a micro-batch, of which there are N.
struct ScoredPositions {
  at::Tensor places;  // int64 [N]: among all positions, ascending
  at::Tensor losses;  // fp32 [N]: the negative log-probability of each target
  std::span<const int64_t> document_starts;  // and the number of positions
  const ColumnValues& columns;
};

// LossFigure: a number that steps and evaluations report of a loss.
struct LossFigure {
  const char* key;                  // in metrics.jsonl
  const char *step_tag, *eval_tag;  // of a tracker
  const char* description;
  const char* short_name = nullptr;  // in a line about an evaluation; null: not there
  bool percent = false;              // there
};

// The figures that a step or an evaluation has, by key.
using FigureValues = std::vector<std::pair<std::string_view, double>>;
// Returns the value of a key; null without it.
const double* figure_of(const FigureValues& figures, std::string_view key);

class Loss {
 public:
  // apply() needs a value of each of the columns for each of its rows.
  explicit Loss(const LossTraits& traits = traits_of(LossKind::kSft),
                std::vector<ColumnId> columns = {})
      : traits_(traits), columns_(std::move(columns)) {}
  virtual ~Loss() = default;
  const LossTraits& traits() const { return traits_; }
  const std::vector<ColumnId>& columns() const { return columns_; }

  // Adds to `result` what the positions' losses come to, and returns the factor of each position's
  // loss in the derivative of that, fp32 [N] on the CPU. HOST WAIT, on a GPU: gradients depend on
  // sums over whole documents.
  at::Tensor apply(const ScoredPositions& positions, LossResult& result) const;
  // Returns the figures of a step or an evaluation over all ranks.
  virtual FigureValues figures(const LossSum& sum) const;

 protected:
  virtual at::Tensor score(const ScoredPositions& positions, LossResult& result) const;

 private:
  LossTraits traits_;
  std::vector<ColumnId> columns_;
};

// Sums in order in fp64: the same bits for any number of threads. Each value is multiplied by its
// weight if there are any. HOST WAIT, on a GPU: loss.
double ordered_sum(const at::Tensor& values, std::span<const float> weights = {});

// Returns the document of each trained position, of documents that begin at the starts and end at
// the next one. `places` is int64 [N], ascending. HOST WAIT, on a GPU: places.
std::vector<size_t> documents_of(const at::Tensor& places,
                                 std::span<const int64_t> document_starts);

// Returns the weights of the trained positions, fp32 on the CPU, which are those of the columns and
// must not outlive them; undefined if there are none.
at::Tensor weights_of(const ColumnValues& columns);

}  // namespace longshore
