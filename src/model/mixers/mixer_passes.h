// mixer_passes: the passes over single rows that mixers have around their recurrence, over a flat
// stream of documents: the causal convolution, which begins at zero in every document, and the
// gated norm. Each has its own backward, which saves its inputs alone; they run with or without
// autograd. Compute thread only.
#pragma once

#include <ATen/ATen.h>

namespace longshore {

struct ConvolutionWeights {
  at::Tensor taps;        // [channels, 1, taps]; the last is that of the position itself
  at::Tensor bias = {};   // [channels]; undefined if there is none
  bool activated = true;  // the result is silu of the sum
};

// Returns the sum over j of taps[c, 0, j] * x[t - (count - 1) + j, c], where what lies before the
// document is 0, with its bias and activation. x is [T, channels]; `positions` are
// MicroBatch::positions.
at::Tensor causal_convolution(const at::Tensor& x, const ConvolutionWeights& weights,
                              const at::Tensor& positions);

// Returns weight * rms(x) * silu(gate), where the norm is over each head of weight's width.
at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                      double eps);

// Returns weight * rms(x * silu(gate)) in the dtype of `gate`, where the norm is over each of
// `groups` equal parts of a row. x is fp32.
at::Tensor norm_of_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                         int64_t groups, double eps);

}  // namespace longshore
