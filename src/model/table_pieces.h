// table_pieces: the embedding and the head cut by rows of the vocabulary, so that no unit is as
// large as the vocabulary. DecoderModel builds them; they are immutable. Compute thread only.
//
// [Note: a head in pieces] Every piece passes on the normed hidden state x unchanged, the
// log-sum-exp over the vocabulary so far for each position, and the target's score once its piece
// has run. With `out` the log-sum-exp after a piece and g its gradient, the gradient of the piece's
// scores is g * exp(scores - out) and that of the log-sum-exp before it g * exp(before - out). This
// is exact and recomputed from x, so scores of all positions or the whole vocabulary never exist.
// The last piece computes the loss. With distillation the pieces pass on the sums of DistillState
// instead ([Note: distillation]). Gradients of x are computed and summed in fp32: rounded to bf16
// in each piece, gradients of small models were up to 1.3 times as far from fp32 as a whole head's.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/arch_spec.h"
#include "model/decoder_units.h"
#include "model/head_unit.h"
#include "model/unit.h"
#include "model/unit_cut.h"

namespace longshore {

// Returns whether each id is among the rows, [N] bool, and its row, 0 if it is not.
std::pair<at::Tensor, at::Tensor> find_rows(const at::Tensor& ids, const TableRows& rows);
// Returns the looked-up `values` [N, width] where `inside`; elsewhere what earlier pieces have put
// there, which the carry `in` has at `place`, and zeros in the first piece. May overwrite `values`.
at::Tensor joined_rows(at::Tensor values, const at::Tensor& inside, const TableRows& rows,
                       const Carry& in, size_t place);
// Adds the gradients `values` [N, width] to rows `local` of the unit's first parameter. Tokens of
// other pieces map to row 0, so their values are zeroed in place.
void add_rows_inside(at::Tensor values, const at::Tensor& inside, const at::Tensor& local,
                     GradientSink& sink);

// Adds the rows of its tokens to the carry; other positions stay. The last piece adds learned
// positions. Each row belongs to one piece, so the bits equal those of the whole embedding.
class EmbeddingPiece : public Unit {
 public:
  EmbeddingPiece(const ArchSpec& arch, const TableRows& rows);
  std::string signature() const override;
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;

 private:
  TableRows rows_;
  double scale_;
  bool scale_rounded_;
  std::optional<double> norm_eps_;
  bool learned_positions_;  // the second parameter, after the table
};

// The code that all pieces of a head share. Carry: log-sum-exp and target score, fp32 [T, 1], x.
class HeadRows : public UnitCode {
 public:
  HeadRows(const ArchSpec& arch, const TableRows& rows);
  std::string signature() const override;
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  int64_t positions_at_once(DeviceKind device) const override {
    return head_chunk_positions(rows_.count, device);
  }
  Bytes gpu_bytes_of_position(DType compute) const override;
  // The settings of distillation, whose sums the carry has then; empty with other losses.
  const std::optional<DistillOptions>& distill() const { return distill_; }
  int64_t teacher_tokens() const override { return distill_ ? distill_->top_k : 0; }
  // Returns the carry before the piece's scores; the first piece makes it from the hidden state.
  Carry begin(UnitParameters parameters, const Carry& in) const;
  // Adds the piece's rows to the log-sum-exp and the target's score.
  void add_rows(UnitParameters parameters, Carry& carry, const MicroBatch& batch) const;
  // Turns the gradient of the carry after the rows into that before; adds to x's in place.
  Carry rows_backward(UnitParameters parameters, const Carry& before, const MicroBatch& batch,
                      const Carry& grad_out, GradientSink& sink) const;
  // Turns the gradient of begin()'s result into the input's.
  Carry begin_backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                       Carry grad, GradientSink& sink) const;
  at::Tensor scores(UnitParameters parameters, const Carry& in, const at::Tensor& positions) const;

 private:
  at::Tensor table(UnitParameters parameters) const;
  at::Tensor norm(UnitParameters parameters, const at::Tensor& x) const;
  // The piece's scores at `rows`, and the targets that lie in the piece.
  struct Chunk;
  Chunk chunk_of(UnitParameters parameters, const Carry& carry, const MicroBatch& batch,
                 const at::Tensor& rows) const;

  TableRows rows_;
  NormKind norm_kind_;
  double norm_eps_;
  LogitRule rule_;
  std::optional<DistillOptions> distill_;
  ModuleIndex index_;    // of the final norm, in the first piece
  int32_t table_index_;  // after the norm: owned or tied
};

class HeadPiece : public UnitAround<Unit> {
 public:
  HeadPiece(const ArchSpec& arch, const TableRows& rows) : rows_(arch, rows) {}
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;
  at::Tensor logits(UnitParameters parameters, const Carry& in,
                    const at::Tensor& positions) const override;

 private:
  const UnitCode& code() const override { return rows_; }

  HeadRows rows_;
};

// The last of at least two pieces; it computes the loss.
class HeadLoss : public UnitAround<LossUnit> {
 public:
  HeadLoss(const ArchSpec& arch, const TableRows& rows) : rows_(arch, rows) {}
  std::string signature() const override { return rows_.signature() + " loss"; }
  Result loss(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  Result loss_and_gradients(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            double scale, bool want_grad_in, GradientSink& sink) const override;
  at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const override;

 private:
  // Computes the loss; `factors` (fp32 [trained]) become those of the positions' losses in it.
  Result score(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
               const at::Tensor& trained, at::Tensor& factors) const;
  // Computes the loss of distillation; `grad_out`, unless it is null, becomes its gradient by the
  // carry after the piece's rows.
  Result distil(UnitParameters parameters, const Carry& in, const MicroBatch& batch, double scale,
                Carry* grad_out) const;
  const UnitCode& code() const override { return rows_; }

  HeadRows rows_;
};

}  // namespace longshore
