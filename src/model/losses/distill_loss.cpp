#include "model/losses/distill_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "device/gpu_tensors.h"
#include "model/parameters/unit_cut.h"

namespace longshore {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

at::Tensor column(const at::Tensor& matrix, int64_t index) {
  return matrix.narrow(1, index, 1);
}

// Returns `values` where `chosen`, else `other`.
at::Tensor or_else(const at::Tensor& chosen, const at::Tensor& values, double other) {
  return at::where(chosen, values, at::full({}, other, values.options()));
}

// Returns the logarithms with 0 for the log-sum-exp of no tokens.
at::Tensor finite(const at::Tensor& logs) {
  return or_else(logs > kNone, logs, 0.0);
}

double times_log(double p) {
  return p > 0.0 ? p * std::log(p) : 0.0;
}

}  // namespace

FigureValues DistillLoss::figures(const LossSum& sum) const {
  const auto sums = sum.named<DistillSums>();
  if (sums.tokens == 0) return {};
  return {{kDistillFigures[0].key, sums.kl / static_cast<double>(sums.tokens)}};
}

DistillState DistillState::before(int64_t positions, const at::TensorOptions& like) {
  const auto fp32 = like.dtype(at::kFloat).requires_grad(false);
  return {at::full({positions, kDistillSums.logs}, kNone, fp32),
          at::zeros({positions, kDistillSums.scores}, fp32)};
}

DistillState chained(const DistillState& earlier, const DistillState& after,
                     const DistillState& by_after) {
  const at::Tensor shares = at::exp(earlier.logs - finite(after.logs));
  return {shares.mul(by_after.logs), by_after.sums};
}

TeacherChunk::TeacherChunk(const DistillOptions& options, const ColumnValues& columns,
                           int64_t begin, int64_t count, at::Device device)
    : options_(options) {
  const int64_t width = options.top_k;
  const std::vector<float>& ids = columns[kTeacherIdColumn];
  const std::vector<float>& logps = columns[kTeacherLogpColumn];
  const auto end = static_cast<size_t>((begin + count) * width);
  LONGSHORE_CHECK(ids.size() >= end && logps.size() >= end && ids.size() == logps.size())
      << ids.size() << " ids of a teacher, " << logps.size() << " log-probabilities, used " << end;
  const auto on_host = [&](const std::vector<float>& values) {
    return tensor_over(const_cast<float*>(values.data()) + begin * width, {count, width},
                       at::kFloat, at::kCPU);
  };
  at::Tensor rest = at::empty({count, 1}, at::kFloat), entropy = at::empty({count, 1}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    double held = 0.0, sum = 0.0;
    for (int64_t j = 0; j < width; ++j) {
      const auto logp = static_cast<double>(logps[static_cast<size_t>((begin + i) * width + j)]);
      if (logp == kNone) continue;
      held += std::exp(logp);
      sum += std::exp(logp) * logp;
    }
    const double left = std::max(0.0, 1.0 - held);
    rest.mutable_data_ptr<float>()[i] = static_cast<float>(left);
    entropy.mutable_data_ptr<float>()[i] = static_cast<float>(sum + times_log(left));
  }
  ids_ = on_host(ids).to(device).to(at::kLong);
  const at::Tensor values = on_host(logps).to(device);
  used_ = values > kNone;
  probabilities_ = values.exp();
  rest_ = rest.to(device);
  entropy_ = entropy.to(device);
}

at::Tensor TeacherChunk::divergences(const DistillState& all) const {
  const at::Tensor rest = column(all.logs, 0);
  return entropy_ - column(all.sums, 0) - rest_ * finite(rest) +
         at::logaddexp(rest, column(all.logs, 1));
}

at::Tensor TeacherChunk::losses(const DistillState& all, const at::Tensor& divergence) const {
  const double weight = options_.ce_weight;
  if (weight == 0.0) return divergence.view({-1});
  const at::Tensor entropy = column(all.logs, 2) - column(all.sums, 1);
  return (divergence * (1.0 - weight) + entropy * weight).view({-1});
}

DistillState TeacherChunk::derivatives(const DistillState& all, const at::Tensor& factors) const {
  const double weight = options_.ce_weight;
  const at::Tensor rest = column(all.logs, 0), known = column(all.logs, 1);
  const at::Tensor whole = at::logaddexp(rest, known);
  const at::Tensor of_divergence = factors * (1.0 - weight), of_entropy = factors * weight;
  return {at::cat({at::exp(rest - whole).sub_(rest_).mul_(of_divergence),
                   at::exp(known - whole).mul_(of_divergence), of_entropy},
                  1),
          at::cat({of_divergence, of_entropy}, 1).neg_()};
}

DistillScores::DistillScores(const TeacherChunk* teacher, at::Tensor logits, int64_t first,
                             const at::Tensor& targets)
    : teacher_(*teacher), rest_(std::move(logits)) {
  const int64_t tokens = rest_.size(1);
  const auto among = [&](const at::Tensor& ids) {
    return at::logical_and(ids >= first, ids < first + tokens);
  };
  const at::Tensor known = among(teacher_.ids_);
  places_ = (teacher_.ids_ - first).mul_(known);
  used_ = at::logical_and(known, teacher_.used_);
  inside_ = among(targets).unsqueeze(1);
  target_ = (targets - first).unsqueeze(1).mul_(inside_);
  if (teacher_.options_.ce_weight > 0.0) plain_ = rest_.clone();
  if (teacher_.options_.temperature != 1.0) rest_.div_(teacher_.options_.temperature);
  scores_ = rest_.gather(1, places_);
  // Adding gives one result in any order where places repeat.
  const at::Tensor nothing = at::zeros_like(scores_);
  rest_.scatter_add_(1, places_, or_else(at::logical_not(used_), nothing, kNone));
}

DistillState DistillScores::after(const DistillState& earlier) const {
  const at::Tensor rest = at::logsumexp(rest_, 1, /*keepdim=*/true);
  const at::Tensor known = at::logsumexp(or_else(used_, scores_, kNone), 1, /*keepdim=*/true);
  const at::Tensor products = or_else(used_, scores_, 0.0).mul_(teacher_.probabilities_);
  at::Tensor all = at::full_like(rest, kNone), logit = at::zeros_like(rest);
  if (plain_.defined()) {
    all = at::logsumexp(plain_, 1, /*keepdim=*/true);
    logit = or_else(inside_, plain_.gather(1, target_), 0.0);
  }
  return {at::logaddexp(earlier.logs, at::cat({rest, known, all}, 1)),
          earlier.sums + at::cat({products.sum(1, /*keepdim=*/true), logit}, 1)};
}

at::Tensor DistillScores::by_logits(const DistillState& after, const DistillState& by_after) {
  const at::Tensor logs = finite(after.logs);
  at::Tensor grad = std::move(rest_);
  grad.sub_(column(logs, 0)).exp_().mul_(column(by_after.logs, 0));
  const at::Tensor known = at::exp(scores_ - column(logs, 1)) * column(by_after.logs, 1) +
                           teacher_.probabilities_ * column(by_after.sums, 0);
  grad.scatter_add_(1, places_, or_else(used_, known, 0.0));
  if (teacher_.options_.temperature != 1.0) grad.div_(teacher_.options_.temperature);
  if (!plain_.defined()) return grad;
  plain_.sub_(column(logs, 2)).exp_().mul_(column(by_after.logs, 2));
  plain_.scatter_add_(1, target_, or_else(inside_, column(by_after.sums, 1), 0.0));
  return grad.add_(plain_);
}

}  // namespace longshore
