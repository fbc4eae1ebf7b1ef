#include "model/decoder/head_scores.h"

#include <limits>
#include <optional>
#include <utility>

#include "base/texts.h"
#include "model/losses/distill_loss.h"
#include "model/ops/fused_ops.h"
#include "model/ops/row_ops.h"

namespace longshore {
namespace {

// The log-sum-exp over the vocabulary, and the target's score ([Note: a head in pieces]).
class EntropyScores : public HeadScores {
 public:
  HeadPart whole(const MicroBatch&, int64_t begin, const at::Tensor& targets, at::Tensor logits,
                 const HeadScale* scale, LossSum&) const override {
    const bool wanted = scale != nullptr;
    at::Tensor factors;
    if (wanted && scale->factors.defined()) {
      factors = scale->factors.narrow(0, begin, targets.size(0));
    }
    HeadPart part;
    if (!wanted || !scale->scored) {
      part.statistics = at::empty({targets.size(0), 2}, logits.options().dtype(at::kFloat));
    }
    part.losses = fused::cross_entropy(logits, targets, wanted ? scale->scale : 1.0, wanted,
                                       factors, part.statistics);
    if (wanted) part.by_logits = std::move(logits);
    return part;
  }
  Carry before(int64_t positions, const at::TensorOptions& fp32) const override {
    return {at::full({positions, 1}, -std::numeric_limits<float>::infinity(), fp32),
            at::zeros({positions, 1}, fp32)};
  }
  void complete(HeadChunk& chunk, const HeadPlace& place, const Carry& carry) const override {
    const auto [inside, local] =
        find_rows(place.batch.targets.index_select(0, place.rows), place.table);
    chunk.inside = inside.unsqueeze(1);
    chunk.targets = local.unsqueeze(1);
    chunk.before = carry.at(kLog).index_select(0, place.rows);
    chunk.after = at::logaddexp(chunk.before, at::logsumexp(chunk.scores, 1, /*keepdim=*/true));
  }
  void add(HeadChunk& chunk, const HeadPlace& place, Carry& carry) const override {
    const at::Tensor of_target = chunk.scores.gather(1, chunk.targets);
    const at::Tensor target = carry[kTarget].index_select(0, place.rows);
    copy_rows(carry[kLog], place.rows, chunk.after);
    copy_rows(carry[kTarget], place.rows, at::where(chunk.inside, of_target, target));
  }
  at::Tensor by_scores(HeadChunk& chunk, const HeadPlace& place, const Carry&,
                       const Carry& grad_out, Carry& grad) const override {
    at::Tensor by_scores = std::move(chunk.scores);
    const at::Tensor by_after = grad_out.at(kLog).index_select(0, place.rows);
    copy_rows(grad[kLog], place.rows, (chunk.before - chunk.after).exp_().mul_(by_after));
    by_scores.sub_(chunk.after).exp_().mul_(by_after);
    const at::Tensor by_target = grad_out.at(kTarget).index_select(0, place.rows);
    add_in_rows(by_scores, chunk.targets,
                at::where(chunk.inside, by_target, at::zeros_like(by_target)));
    return by_scores;
  }
  LossUnit::Result finish(const MicroBatch& batch, const TableRows&,
                          const std::function<Carry()>& pieces, double scale,
                          Carry* grad_out) const override {
    const at::Tensor trained = trained_positions(batch.targets);
    LossUnit::Result result;
    at::Tensor factors;
    {
      const Carry carry = pieces();
      if (batch.hits != nullptr) batch.hits->compare_pieces(trained, batch.targets);
      const at::Tensor losses = (carry[kLog] - carry[kTarget]).index_select(0, trained).view({-1});
      factors = apply_loss(batch, trained, losses, result).to(losses.device());
    }
    if (grad_out != nullptr) {
      copy_rows((*grad_out)[kLog], trained, factors.mul_(scale).unsqueeze(1));
      (*grad_out)[kTarget] = (*grad_out)[kLog].neg();
    }
    return result;
  }
};

// The sums of DistillState ([Note: distillation]).
class TeacherScores : public HeadScores {
 public:
  explicit TeacherScores(const DistillOptions& options) : options_(options) {}
  std::string signature() const override {
    return formatted(" distilled %lld", static_cast<long long>(options_.top_k)) +
           (options_.temperature != 1.0 ? " divided" : "") +
           (options_.ce_weight > 0.0 ? " mixed" : "");
  }
  // Counts the scores in fp32 and their exponentials, and with cross entropy two copies more.
  Bytes gpu_bytes() const override {
    return (options_.ce_weight > 0.0 ? 4 : 2) * width_of(DType::kF32);
  }
  int64_t teacher_tokens() const override { return options_.top_k; }

  // HOST WAIT, on a GPU: the sum of the divergence is a metric of the step.
  HeadPart whole(const MicroBatch& batch, int64_t begin, const at::Tensor& targets,
                 at::Tensor logits, const HeadScale* scale, LossSum& sums) const override {
    const int64_t count = targets.size(0);
    const TeacherChunk teacher(options_, batch.all_columns(), begin, count, targets.device());
    logits = logits.to(at::kFloat);
    const auto none = DistillState::before(count, logits.options());
    DistillScores scores(&teacher, std::move(logits), 0, targets);
    const DistillState all = scores.after(none);
    const at::Tensor divergence = teacher.divergences(all);
    HeadPart part{.losses = teacher.losses(all, divergence), .by_logits = {}};
    sums.add(DistillSums{.tokens = count, .kl = ordered_sum(divergence)});
    if (scale == nullptr) return part;
    at::Tensor factors = at::full_like(divergence, scale->scale);
    if (scale->factors.defined()) {
      factors.mul_(scale->factors.narrow(0, begin, count).unsqueeze(1));
    }
    part.by_logits = scores.by_logits(all, teacher.derivatives(all, factors));
    return part;
  }
  Carry before(int64_t positions, const at::TensorOptions& fp32) const override {
    const DistillState none = DistillState::before(positions, fp32);
    return {none.logs, none.sums};
  }
  void add(HeadChunk& chunk, const HeadPlace& place, Carry& carry) const override {
    const TeacherChunk teacher = teacher_at(place);
    const DistillScores scores(&teacher, std::move(chunk.scores), place.table.first,
                               place.batch.targets.index_select(0, place.rows));
    put_state(scores.after(state_at(carry, place.rows)), place.rows, carry);
  }
  at::Tensor by_scores(HeadChunk& chunk, const HeadPlace& place, const Carry& before,
                       const Carry& grad_out, Carry& grad) const override {
    const TeacherChunk teacher = teacher_at(place);
    DistillScores scores(&teacher, std::move(chunk.scores), place.table.first,
                         place.batch.targets.index_select(0, place.rows));
    const DistillState earlier = state_at(before, place.rows);
    const DistillState by_after = state_at(grad_out, place.rows);
    const DistillState after = scores.after(earlier);
    copy_rows(grad[kLog], place.rows, chained(earlier, after, by_after).logs);
    return scores.by_logits(after, by_after);
  }
  LossUnit::Result finish(const MicroBatch& batch, const TableRows& table,
                          const std::function<Carry()>& pieces, double scale,
                          Carry* grad_out) const override {
    const Carry carry = pieces();
    if (batch.hits != nullptr) {
      batch.hits->compare_pieces(trained_positions(batch.targets), batch.targets);
    }
    LossUnit::Result result;
    const at::Tensor weights = weights_of(batch.all_columns());
    for_each_chunk(table, batch, [&](const HeadPlace& place) {
      const int64_t count = place.rows.size(0);
      const TeacherChunk teacher = teacher_at(place);
      const DistillState all = state_at(carry, place.rows);
      const at::Tensor divergence = teacher.divergences(all);
      const at::Tensor losses = teacher.losses(all, divergence);
      std::span<const float> some = batch.column(kWeightColumn);
      if (!some.empty()) {
        some = some.subspan(static_cast<size_t>(place.begin), static_cast<size_t>(count));
      }
      // HOST WAIT, on a GPU: these sums are the step's results.
      result.loss += ordered_sum(losses, some);
      result.trained += count;
      result.add(DistillSums{.tokens = count, .kl = ordered_sum(divergence)});
      if (grad_out == nullptr) return;
      at::Tensor factors = at::full_like(divergence, scale);
      if (weights.defined()) {
        factors.mul_(weights.narrow(0, place.begin, count).unsqueeze(1).to(place.rows.device()));
      }
      put_state(teacher.derivatives(all, factors), place.rows, *grad_out);
    });
    return result;
  }

 private:
  TeacherChunk teacher_at(const HeadPlace& place) const {
    return {options_, place.batch.all_columns(), place.begin, place.rows.size(0),
            place.rows.device()};
  }
  // Returns the carry's sums at some positions.
  static DistillState state_at(const Carry& carry, const at::Tensor& rows) {
    return {carry.at(kLog).index_select(0, rows), carry.at(kTarget).index_select(0, rows)};
  }
  static void put_state(const DistillState& state, const at::Tensor& rows, Carry& carry) {
    copy_rows(carry[kLog], rows, state.logs);
    copy_rows(carry[kTarget], rows, state.sums);
  }

  DistillOptions options_;
};

}  // namespace

at::Tensor trained_positions(const at::Tensor& targets) {
  return at::nonzero(targets != kNotTrained).view({-1});
}

std::unique_ptr<const HeadScores> make_head_scores(const ArchSpec& arch) {
  if (arch.distill) return std::make_unique<TeacherScores>(*arch.distill);
  return std::make_unique<EntropyScores>();
}

bool scores_first(const MicroBatch& batch) {
  return batch.loss && batch.loss->traits().scores_first;
}

at::Tensor apply_loss(const MicroBatch& batch, const at::Tensor& trained, const at::Tensor& losses,
                      LossUnit::Result& result) {
  static const Loss kWeighted;
  const Loss& loss = batch.loss ? *batch.loss : kWeighted;
  return loss.apply({trained, losses, batch.document_starts, batch.all_columns()}, result);
}

}  // namespace longshore
