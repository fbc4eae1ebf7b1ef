// Head math: what a whole head and its pieces have in common: scores from hidden states, which
// positions are trained, sums. Pure functions over tensors; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include "model/arch_spec.h"

namespace longshore {

inline constexpr int64_t kNotTrained = -100;

// int64 [N]. HOST WAIT, on a GPU: how many they are decides how many chunks are issued. One of some
// 20 us for each micro-batch and piece of the head, beside milliseconds of products; it stays.
at::Tensor trained_positions(const at::Tensor& targets);

// In order, in fp64: the same bits for any number of threads. HOST WAIT, on a GPU: loss.
double ordered_sum(const at::Tensor& values);

// What becomes of products with the head's rows: divided, and bent to a cap.
class LogitRule {
 public:
  explicit LogitRule(const ArchSpec& arch) : divisor_(arch.logit_divisor), cap_(arch.logit_cap) {}
  bool divides() const { return divisor_ != 1.0; }
  bool caps() const { return cap_ != 0.0; }
  double cap() const { return cap_; }
  // In the compute dtype, not capped yet. `table`: [rows, hidden].
  at::Tensor project(const at::Tensor& normed, const at::Tensor& table) const;
  // Of cap * tanh(logits / cap), the tanh, fp32, over the logits' own memory where they are fp32.
  at::Tensor bend(const at::Tensor& logits) const;
  // fp32, capped.
  at::Tensor scores(const at::Tensor& normed, const at::Tensor& table) const;
  // From the gradient by the capped, divided scores to that by the product, in the dtype of `like`.
  // `bent`: of bend; undefined where nothing is capped.
  at::Tensor by_product(at::Tensor grad, at::Tensor bent, const at::Tensor& like) const;

 private:
  double divisor_;
  double cap_;
};

}  // namespace longshore
