// HeadUnit: final norm, head and cross entropy; and LogitRule, how scores follow from products,
// which the pieces of a head share. Forward and backward run together over chunks of trained
// positions, so logits of all positions never exist. DecoderModel builds it; it is immutable.
// Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/decoder/decoder_units.h"
#include "model/decoder/head_scores.h"
#include "model/families/arch_spec.h"
#include "model/units/linear.h"
#include "model/units/unit.h"

namespace longshore {

// Turns products with the head's rows into scores: divides them and caps them.
class LogitRule {
 public:
  explicit LogitRule(const ArchSpec& arch) : divisor_(arch.logit_divisor), cap_(arch.logit_cap) {}
  bool divides() const { return divisor_ != 1.0; }
  bool caps() const { return cap_ != 0.0; }
  double cap() const { return cap_; }
  // Returns scores in the compute dtype, not yet capped. The table is [rows, hidden].
  at::Tensor project(const at::Tensor& normed, const Linear& table) const;
  // Returns tanh(logits / cap) in fp32; overwrites the logits if they are fp32.
  at::Tensor bend(const at::Tensor& logits) const;
  // Returns capped scores in fp32.
  at::Tensor scores(const at::Tensor& normed, const Linear& table) const;
  // Turns the gradient by the final scores into that by the product, in the dtype of `like`. `bent`
  // is the result of bend(), undefined without a cap.
  at::Tensor by_product(at::Tensor grad, at::Tensor bent, const at::Tensor& like) const;

 private:
  double divisor_;
  double cap_;
};

class HeadUnit : public LossUnit {
 public:
  HeadUnit(const ArchSpec& arch, bool tied);
  UnitTraits traits(const UnitUse& use) const override;
  Result loss(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  Result loss_and_gradients(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            double scale, bool want_grad_in, GradientSink& sink) const override;
  at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const override;

 private:
  struct Gradients;
  // Returns the head for all positions, owned or tied.
  Linear head(UnitParameters parameters, const MicroBatch& batch) const;
  at::Tensor norm(UnitParameters parameters, const at::Tensor& x) const;
  static void chunk_gradients(const at::Tensor& x, const at::Tensor& normed, at::Tensor grad_logits,
                              const Linear& head, const at::Tensor& rows, Gradients& gradients);
  struct Parts;
  // Returns the losses of the trained positions by chunk. Given `gradients`, adds to them; if the
  // losses were computed before, nothing is returned. Adds the loss's own sums to `sums`.
  Parts run(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
            const at::Tensor& trained, Gradients* gradients, LossSum& sums) const;

  NormKind norm_kind_;
  double norm_eps_;
  LogitRule rule_;
  std::unique_ptr<const HeadScores> scores_;
  int64_t vocabulary_;
  ModuleIndex index_;
  bool drops_;          // the adapter's input
  int32_t head_index_;  // in the unit's list, after the norm: owned or tied
};

}  // namespace longshore
