// head_math: what a whole head and its pieces share: scores from hidden states, trained positions,
// sums. Pure functions over tensors; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include "model/arch_spec.h"

namespace longshore {

inline constexpr int64_t kNotTrained = -100;

// Returns int64 [N]. HOST WAIT, on a GPU: the number decides how many chunks are issued. It takes
// about 20 us per micro-batch and piece of the head, next to products of milliseconds.
at::Tensor trained_positions(const at::Tensor& targets);

// Sums in order in fp64: the same bits for any number of threads. HOST WAIT, on a GPU: loss.
double ordered_sum(const at::Tensor& values);

// Turns products with the head's rows into scores: divides them and caps them.
class LogitRule {
 public:
  explicit LogitRule(const ArchSpec& arch) : divisor_(arch.logit_divisor), cap_(arch.logit_cap) {}
  bool divides() const { return divisor_ != 1.0; }
  bool caps() const { return cap_ != 0.0; }
  double cap() const { return cap_; }
  // Returns scores in the compute dtype, not yet capped. `table` is [rows, hidden].
  at::Tensor project(const at::Tensor& normed, const at::Tensor& table) const;
  // Returns tanh(logits / cap) in fp32; overwrites the logits if they are fp32.
  at::Tensor bend(const at::Tensor& logits) const;
  // Returns capped scores in fp32.
  at::Tensor scores(const at::Tensor& normed, const at::Tensor& table) const;
  // Turns the gradient by the final scores into that by the product, in the dtype of `like`. `bent`
  // is the result of bend(), undefined without a cap.
  at::Tensor by_product(at::Tensor grad, at::Tensor bent, const at::Tensor& like) const;

 private:
  double divisor_;
  double cap_;
};

}  // namespace longshore
