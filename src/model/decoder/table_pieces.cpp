#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>
#include <utility>

#include "model/decoder/decoder_units.h"
#include "model/decoder/head_unit.h"
#include "model/ops/fused_ops.h"
#include "model/ops/row_ops.h"
#include "model/ops/wide_products.h"

namespace longshore {
namespace {

// [Note: a head in pieces] Every piece passes on the normed hidden state x unchanged, the
// log-sum-exp over the vocabulary so far for each position, and the target's score once its piece
// has run. With `out` the log-sum-exp after a piece and g its gradient, the gradient of the piece's
// scores is g * exp(scores - out) and that of the log-sum-exp before it g * exp(before - out). This
// is exact and recomputed from x, so scores of all positions or the whole vocabulary never exist.
// The last piece computes the loss. With distillation the pieces pass on the sums of DistillState
// instead ([Note: distillation]). Gradients of x are computed and summed in fp32: rounded to bf16
// in each piece, gradients of small models were up to 1.3 times as far from fp32 as a whole head's.

// Returns left x right in fp32: the caller sums such products.
at::Tensor wide_product(const at::Tensor& left, const at::Tensor& right) {
  at::Tensor sum = at::zeros({left.size(0), right.size(1)}, left.options().dtype(at::kFloat));
  add_wide_product(sum, left, right);
  return sum;
}

// Adds the rows of its tokens to the carry; other positions stay. The last piece adds learned
// positions. Each row belongs to one piece, so the bits equal those of the whole embedding.
class EmbeddingPiece : public Unit {
 public:
  EmbeddingPiece(const ArchSpec& arch, const TableRows& rows)
      : rows_(rows),
        scale_(arch.embedding_scale),
        scale_rounded_(arch.embedding_scale_rounded),
        norm_eps_(embedding_norm_eps(arch)),
        learned_positions_(rows.ends() && arch.position == PositionKind::kLearned) {}
  UnitTraits traits(const UnitUse& use) const override {
    return {.signature = std::string("embedding piece") + (rows_.begins() ? " first" : "") +
                         (norm_eps_ ? " normed" : "") + (learned_positions_ ? " positions" : ""),
            .documents = {use.longest_document}};
  }
  Carry forward(UnitParameters parameters, const Carry& in,
                const MicroBatch& batch) const override {
    const at::NoGradGuard no_grad;
    const auto [inside, local] = find_rows(batch.tokens, rows_);
    at::Tensor x = at::index_select(parameters[0], 0, local);
    if (scale_ != 1.0) x.mul_(embedding_scale_for(scale_, scale_rounded_, x));
    if (norm_eps_) x = normed_rows(x, *norm_eps_);
    x = joined_rows(std::move(x), inside, rows_, in, 0);
    if (learned_positions_) x.add_(at::index_select(parameters[1], 0, batch.positions));
    return {x};
  }
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry&, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override {
    const at::Tensor& grad = grad_out.at(0);
    if (sink.wants(0)) {
      const auto [inside, local] = find_rows(batch.tokens, rows_);
      at::Tensor values;
      if (norm_eps_) {
        const at::Tensor rows = parameters[0].detach().index_select(0, local);
        values = normed_rows_backward(grad, rows, *norm_eps_);
      } else {
        values =
            scale_ == 1.0 ? grad.clone() : grad * embedding_scale_for(scale_, scale_rounded_, grad);
      }
      add_rows_inside(std::move(values), inside, local, sink);
    }
    if (learned_positions_ && sink.wants(1)) sink.add_rows(1, batch.positions, grad);
    if (rows_.begins()) return {};
    return {grad};
  }

 private:
  TableRows rows_;
  double scale_;
  bool scale_rounded_;
  std::optional<double> norm_eps_;
  bool learned_positions_;  // the second parameter, after the table
};

// The code that all pieces of a head share. Carry: log-sum-exp and target score, fp32 [T, 1], x.
class HeadRows {
 public:
  HeadRows(const ArchSpec& arch, const TableRows& rows)
      : rows_(rows),
        norm_kind_(arch.final_norm_kind()),
        norm_eps_(arch.norm_eps),
        rule_(arch),
        scores_(make_head_scores(arch)),
        index_(rows.begins() ? head_parameters(arch, {}, /*tied=*/true)
                             : std::vector<ModuleParameter>(),
               arch),
        table_index_(rows.begins()
                         ? static_cast<int32_t>(head_parameters(arch, {}, /*tied=*/true).size())
                         : 0) {}
  UnitTraits traits(const UnitUse& use) const {
    const Bytes of_logit = width_of(use.compute) + (rule_.caps() ? 3 : 2) * width_of(DType::kF32) +
                           scores_->gpu_bytes();
    return {.signature = std::string("head piece") + (rows_.begins() ? " first " : " ") +
                         std::to_string(static_cast<int>(norm_kind_)) + " " +
                         std::to_string(rows_.count) + (rule_.divides() ? " divided" : "") +
                         (rule_.caps() ? " capped" : "") + scores_->signature(),
            .documents = {use.longest_document},
            .positions_at_once = head_chunk_positions(rows_.count, use.device),
            .teacher_tokens = scores_->teacher_tokens(),
            .gpu_bytes_of_position = rows_.count * of_logit};
  }
  // Returns the carry before the piece's scores; the first piece makes it from the hidden state.
  Carry begin(UnitParameters parameters, const Carry& in) const {
    if (!rows_.begins()) return in;
    const at::Tensor& hidden = in.at(0);
    const auto fp32 = hidden.options().dtype(at::kFloat).requires_grad(false);
    Carry carry = scores_->before(hidden.size(0), fp32);
    carry.push_back(norm(parameters, hidden));
    return carry;
  }
  // Adds the piece's rows to the carry's sums.
  void add_rows(UnitParameters parameters, Carry& carry, const MicroBatch& batch) const {
    for_each_chunk(rows_, batch, [&](const HeadPlace& place) {
      HeadChunk chunk = chunk_of(parameters, carry, place);
      if (batch.hits != nullptr) {
        batch.hits->note_piece(chunk.scores, place.rows, batch.targets.size(0), rows_.first);
      }
      scores_->add(chunk, place, carry);
    });
  }
  // Computes the loss of the last piece; `grad_out`, unless it is null, becomes the gradient of
  // scale * loss by the carry after the piece's rows.
  LossUnit::Result finish(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                          double scale, Carry* grad_out) const {
    const auto pieces = [&] {
      Carry carry = in;
      for (const size_t part : {kLog, kTarget}) carry[part] = carry[part].clone();
      add_rows(parameters, carry, batch);
      return carry;
    };
    return scores_->finish(batch, rows_, pieces, scale, grad_out);
  }
  // Turns the gradient of the carry after the rows into that before; adds to x's in place.
  Carry rows_backward(UnitParameters parameters, const Carry& before, const MicroBatch& batch,
                      const Carry& grad_out, GradientSink& sink) const {
    Carry grad = {at::zeros_like(grad_out.at(kLog)), grad_out.at(kTarget), grad_out.at(kHidden)};
    for_each_chunk(rows_, batch, [&](const HeadPlace& place) {
      HeadChunk chunk = chunk_of(parameters, before, place);
      at::Tensor by_scores = scores_->by_scores(chunk, place, before, grad_out, grad);
      const at::Tensor by_product =
          rule_.by_product(std::move(by_scores), std::move(chunk.bent), chunk.x);
      if (sink.wants(table_index_)) sink.add_product(table_index_, by_product, chunk.x);
      add_to_rows(grad[kHidden], place.rows,
                  wide_product(by_product, table(parameters).weight.values()));
    });
    return grad;
  }
  // Turns the gradient of begin()'s result into the input's.
  Carry begin_backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                       Carry grad, GradientSink& sink) const {
    if (!rows_.begins()) return grad;
    const at::Tensor& hidden = in.at(0);
    const NormGradients own =
        index_.norm_gradients(parameters, Module::kFinalNorm, norm_kind_, norm_eps_, sink);
    at::Tensor grad_in = at::zeros(hidden.sizes(), hidden.options().requires_grad(false));
    for_each_chunk(rows_, batch, [&](const HeadPlace& place) {
      const at::Tensor& rows = place.rows;
      const at::Tensor by_normed = grad[kHidden].index_select(0, rows).to(hidden.scalar_type());
      copy_rows(grad_in, rows, own.backward(by_normed, hidden.index_select(0, rows)));
    });
    own.add_to(sink);
    return {grad_in};
  }
  at::Tensor scores(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const {
    const at::NoGradGuard no_grad;
    const at::Tensor& from = in.at(rows_.begins() ? 0 : kHidden);
    const at::Tensor x = from.index_select(0, positions.to(from.device()));
    Linear own = table(parameters);
    own.continue_rows(batch, x);
    return rule_.scores(rows_.begins() ? norm(parameters, x) : x, own);
  }

 private:
  Linear table(UnitParameters parameters) const {
    return {.weight = parameters.at(static_cast<size_t>(table_index_))};
  }
  at::Tensor norm(UnitParameters parameters, const at::Tensor& x) const {
    return normalise(x, index_.weight(parameters, Module::kFinalNorm),
                     index_.bias(parameters, Module::kFinalNorm), norm_kind_, norm_eps_);
  }
  // Returns the piece's scores at a place.
  HeadChunk chunk_of(UnitParameters parameters, const Carry& carry, const HeadPlace& place) const {
    HeadChunk chunk;
    chunk.x = carry.at(kHidden).index_select(0, place.rows);
    at::Tensor logits = rule_.project(chunk.x, table(parameters));
    if (rule_.caps()) {
      chunk.bent = rule_.bend(logits);
      logits.reset();
      chunk.scores = chunk.bent * rule_.cap();
    } else {
      chunk.scores = logits.to(at::kFloat);
    }
    scores_->complete(chunk, place, carry);
    return chunk;
  }

  TableRows rows_;
  NormKind norm_kind_;
  double norm_eps_;
  LogitRule rule_;
  std::unique_ptr<const HeadScores> scores_;
  ModuleIndex index_;    // of the final norm, in the first piece
  int32_t table_index_;  // after the norm: owned or tied
};

class HeadPiece : public Unit {
 public:
  HeadPiece(const ArchSpec& arch, const TableRows& rows) : rows_(arch, rows) {}
  UnitTraits traits(const UnitUse& use) const override { return rows_.traits(use); }
  Carry forward(UnitParameters parameters, const Carry& in,
                const MicroBatch& batch) const override {
    const at::NoGradGuard no_grad;
    Carry carry = rows_.begin(parameters, in);
    // The tensors are cloned because the caller keeps the input.
    for (const size_t part : {kLog, kTarget}) carry[part] = carry[part].clone();
    rows_.add_rows(parameters, carry, batch);
    return carry;
  }
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override {
    const Carry before = rows_.begin(parameters, in);
    return rows_.begin_backward(parameters, in, batch,
                                rows_.rows_backward(parameters, before, batch, grad_out, sink),
                                sink);
  }
  at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const override {
    return rows_.scores(parameters, in, batch, positions);
  }

 private:
  HeadRows rows_;
};

// The last of at least two pieces; it computes the loss.
class HeadLoss : public LossUnit {
 public:
  HeadLoss(const ArchSpec& arch, const TableRows& rows) : rows_(arch, rows) {}
  UnitTraits traits(const UnitUse& use) const override {
    UnitTraits traits = rows_.traits(use);
    traits.signature += " loss";
    return traits;
  }
  LossUnit::Result loss(UnitParameters parameters, const Carry& in,
                        const MicroBatch& batch) const override {
    const at::NoGradGuard no_grad;
    return rows_.finish(parameters, in, batch, 1.0, nullptr);
  }
  LossUnit::Result loss_and_gradients(UnitParameters parameters, const Carry& in,
                                      const MicroBatch& batch, double scale, bool want_grad_in,
                                      GradientSink& sink) const override {
    const at::NoGradGuard no_grad;
    const auto fp32 = in.at(kHidden).options().dtype(at::kFloat).requires_grad(false);
    Carry grad_out = {at::zeros(in.at(kLog).sizes(), fp32), at::zeros(in.at(kTarget).sizes(), fp32),
                      at::zeros(in.at(kHidden).sizes(), fp32)};
    Result result = rows_.finish(parameters, in, batch, scale, &grad_out);
    Carry grad = rows_.rows_backward(parameters, in, batch, grad_out, sink);
    if (want_grad_in) result.grad_in = std::move(grad);
    return result;
  }
  at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const override {
    return rows_.scores(parameters, in, batch, positions);
  }

 private:
  HeadRows rows_;
};

}  // namespace

std::pair<at::Tensor, at::Tensor> find_rows(const at::Tensor& ids, const TableRows& rows) {
  const at::Tensor inside = at::logical_and(ids >= rows.first, ids < rows.first + rows.count);
  return {inside, at::where(inside, ids - rows.first, at::zeros_like(ids))};
}

at::Tensor joined_rows(at::Tensor values, const at::Tensor& inside, const TableRows& rows,
                       const Carry& in, size_t place) {
  const at::Tensor mask = inside.unsqueeze(1);
  return rows.begins() ? values.masked_fill_(at::logical_not(mask), 0.0)
                       : at::where(mask, values, in.at(place));
}

void add_rows_inside(at::Tensor values, const at::Tensor& inside, const at::Tensor& local,
                     GradientSink& sink) {
  values.masked_fill_(at::logical_not(inside).unsqueeze(1), 0.0);
  sink.add_rows(0, local, values);
}

std::unique_ptr<Unit> make_embedding_piece(const ArchSpec& arch, const TableRows& rows) {
  return std::make_unique<EmbeddingPiece>(arch, rows);
}

std::unique_ptr<Unit> make_head_piece(const ArchSpec& arch, const TableRows& rows) {
  return std::make_unique<HeadPiece>(arch, rows);
}

std::unique_ptr<LossUnit> make_head_loss(const ArchSpec& arch, const TableRows& rows) {
  return std::make_unique<HeadLoss>(arch, rows);
}

}  // namespace longshore
