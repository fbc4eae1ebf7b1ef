// Table pieces: the embedding and the head cut by rows of the vocabulary, so that no unit is as
// large as the vocabulary. Built by DecoderModel, immutable; compute thread only.
//
// [Note: a head in pieces] Every piece hands on the normed hidden state x as it got it, and for
// each position the logarithm of the sum of exponentials over the vocabulary so far, and the
// target's score once its piece came by. With `out` the logarithm after a piece and g its gradient,
// the piece's scores have the gradient g * exp(scores - out), the logarithm before it g *
// exp(before - out): exact, and computed again from x, so that scores of all positions or all of
// the vocabulary never exist. The last piece makes the loss. Gradients by x are made and summed in
// fp32: where each piece rounded its own to bf16, gradients of small models were up to 1.3 times as
// far from fp32 as those of a whole head.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/arch_spec.h"
#include "model/decoder_units.h"
#include "model/head_math.h"
#include "model/head_unit.h"
#include "model/unit.h"
#include "model/unit_cut.h"

namespace longshore {

// Adds the rows of its tokens to the carry; other positions pass. The last one adds learned
// positions. Each row is one piece's, so the bits are those of the whole embedding.
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
  bool learned_positions_;  // the parameter behind the table
};

// What all pieces of a head do. Carry: logarithm and target's score, fp32 [T, 1], and x.
class HeadRows {
 public:
  HeadRows(const ArchSpec& arch, const TableRows& rows);
  // Positions whose scores exist at one time, and what one takes on a GPU.
  int64_t chunk(DeviceKind device) const { return head_chunk_positions(rows_.count, device); }
  Bytes gpu_bytes_of_position(DType compute) const;
  std::string signature() const;
  // The carry as the piece's scores find it: of the first piece made from the hidden state.
  Carry begin(UnitParameters parameters, const Carry& in) const;
  // Adds the piece's rows to logarithm and target's score.
  void add_rows(UnitParameters parameters, Carry& carry, const MicroBatch& batch) const;
  // From the gradient of the carry behind the rows to that before them; x's is added to in place.
  Carry rows_backward(UnitParameters parameters, const Carry& before, const MicroBatch& batch,
                      const Carry& grad_out, GradientSink& sink) const;
  // From there to that of the input.
  Carry begin_backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                       Carry grad, GradientSink& sink) const;
  at::Tensor scores(UnitParameters parameters, const Carry& in, const at::Tensor& positions) const;

 private:
  at::Tensor table(UnitParameters parameters) const;
  at::Tensor norm(UnitParameters parameters, const at::Tensor& x) const;
  // The piece's scores at `rows`, and where targets are in it.
  struct Chunk;
  Chunk chunk_of(UnitParameters parameters, const Carry& carry, const MicroBatch& batch,
                 const at::Tensor& rows) const;

  TableRows rows_;
  NormKind norm_kind_;
  double norm_eps_;
  LogitRule rule_;
  ModuleIndex index_;    // of the final norm, in the first piece
  int32_t table_index_;  // behind the norm: owned or tied
};

class HeadPiece : public Unit {
 public:
  HeadPiece(const ArchSpec& arch, const TableRows& rows) : rows_(arch, rows) {}
  std::string signature() const override { return rows_.signature(); }
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  int64_t positions_at_once(DeviceKind device) const override { return rows_.chunk(device); }
  Bytes gpu_bytes_of_position(DType compute) const override {
    return rows_.gpu_bytes_of_position(compute);
  }
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;
  at::Tensor logits(UnitParameters parameters, const Carry& in,
                    const at::Tensor& positions) const override;

 private:
  HeadRows rows_;
};

// The last piece, of at least two.
class HeadLoss : public LossUnit {
 public:
  HeadLoss(const ArchSpec& arch, const TableRows& rows) : rows_(arch, rows) {}
  std::string signature() const override { return rows_.signature() + " loss"; }
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  int64_t positions_at_once(DeviceKind device) const override { return rows_.chunk(device); }
  Bytes gpu_bytes_of_position(DType compute) const override {
    return rows_.gpu_bytes_of_position(compute);
  }
  Result loss(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  Result loss_and_gradients(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            double scale, bool want_grad_in, GradientSink& sink) const override;
  at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const override;

 private:
  HeadRows rows_;
};

}  // namespace longshore
