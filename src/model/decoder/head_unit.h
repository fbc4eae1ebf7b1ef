// HeadUnit: final norm, head and cross entropy. Forward and backward run together over chunks of
// trained positions, so logits of all positions never exist. DecoderModel builds it; it is
// immutable. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/decoder/decoder_units.h"
#include "model/families/arch_spec.h"
#include "model/losses/distill_loss.h"
#include "model/units/adapted_product.h"
#include "model/units/unit.h"

namespace longshore {

// head_math: what a whole head and its pieces share: scores from hidden states, trained positions,
// sums. Pure functions over tensors; compute thread only.

inline constexpr int64_t kNotTrained = -100;

// Returns int64 [N]. HOST WAIT, on a GPU: the number decides how many chunks are issued. It takes
// about 20 us per micro-batch and piece of the head, next to products of milliseconds.
at::Tensor trained_positions(const at::Tensor& targets);

// Returns whether the batch's loss is made from log-probabilities that are computed first.
bool scores_first(const MicroBatch& batch);

// Applies the batch's loss to the positions' losses, fp32 [trained]; returns what Loss::apply does.
at::Tensor apply_loss(const MicroBatch& batch, const at::Tensor& trained, const at::Tensor& losses,
                      LossUnit::Result& result);

// Returns what the loss of distillation adds to the signature of a head; empty without it.
std::string signature_of(const std::optional<DistillOptions>& distill);
// Returns the bytes of a token's scores that it needs on a GPU at one position; 0 without it.
Bytes gpu_bytes_of(const std::optional<DistillOptions>& distill);

// Turns products with the head's rows into scores: divides them and caps them.
class LogitRule {
 public:
  explicit LogitRule(const ArchSpec& arch) : divisor_(arch.logit_divisor), cap_(arch.logit_cap) {}
  bool divides() const { return divisor_ != 1.0; }
  bool caps() const { return cap_ != 0.0; }
  double cap() const { return cap_; }
  // Returns scores in the compute dtype, not yet capped. `table` is [rows, hidden].
  at::Tensor project(const at::Tensor& normed, const at::Tensor& table,
                     const Lora& lora = {}) const;
  // Returns tanh(logits / cap) in fp32; overwrites the logits if they are fp32.
  at::Tensor bend(const at::Tensor& logits) const;
  // Returns capped scores in fp32.
  at::Tensor scores(const at::Tensor& normed, const at::Tensor& table, const Lora& lora = {}) const;
  // Turns the gradient by the final scores into that by the product, in the dtype of `like`. `bent`
  // is the result of bend(), undefined without a cap.
  at::Tensor by_product(at::Tensor grad, at::Tensor bent, const at::Tensor& like) const;

 private:
  double divisor_;
  double cap_;
};

// The number of positions whose logits exist at one time. It depends only on device and vocabulary,
// so bits do not depend on memory. The CPU takes at most 2^24 logits (64 MiB in fp32), but at least
// 64 positions, because every chunk reads the head's matrix and adds to its gradient. On a GPU a
// chunk's cost is memory traffic: the matrix (2 bytes, twice) and its gradient (4 bytes, read and
// written) are 12 bytes per element for 6 operations per position. 1,024 positions give 512
// operations per byte, above the balance of an H200 (206) and an H100 (295); the CPU's 130 for
// Llama 3 would give 65.
constexpr int64_t head_chunk_positions(int64_t vocabulary, DeviceKind device) {
  if (device == DeviceKind::kCuda) return 1024;
  const int64_t fitting = (int64_t{1} << 24) / vocabulary;
  return fitting < 64 ? 64 : (fitting > 1024 ? 1024 : fitting);
}

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
  at::Tensor head_weight(UnitParameters parameters) const;
  at::Tensor norm(UnitParameters parameters, const at::Tensor& x) const;
  // Returns the adapter of the head for all positions; without tensors if it has none.
  Lora adapter(UnitParameters parameters, const MicroBatch& batch) const;
  void chunk_gradients(UnitParameters parameters, const at::Tensor& x, const at::Tensor& normed,
                       at::Tensor grad_logits, const Lora& lora, const at::Tensor& rows,
                       Gradients& gradients) const;
  struct Distilled;
  // Computes the loss of distillation of a chunk. Overwrites the logits.
  Distilled distil(const MicroBatch& batch, int64_t begin, const at::Tensor& targets,
                   at::Tensor logits, const Gradients* gradients) const;
  // Returns the losses of the trained positions by chunk, fp32. Given `gradients`, adds to them; if
  // the losses were computed before, nothing is returned. Adds to `sums` with distillation.
  std::vector<at::Tensor> run(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                              const at::Tensor& trained, Gradients* gradients,
                              DistillSums& sums) const;

  NormKind norm_kind_;
  double norm_eps_;
  LogitRule rule_;
  std::optional<DistillOptions> distill_;
  int64_t vocabulary_;
  ModuleIndex index_;
  bool drops_;          // the adapter's input
  int32_t head_index_;  // in the unit's list, after the norm: owned or tied
};

}  // namespace longshore
