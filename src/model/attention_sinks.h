// Attention sinks: one more score for each head, which takes its share of the softmax and gives no
// value. Attention without sinks, its logarithms of sums of exponentials and this are attention
// with them: out is scaled by what the sink leaves, the logarithm becomes that of the sum with it,
// and the kernels' own backward over both is the one with the sink in it. Compute thread only.
#pragma once

#include <ATen/ATen.h>

namespace longshore {

// Views of one piece: out [..., rows, head_dim], sums fp32 [..., rows], sinks [..., 1], where ...
// counts heads. Writes over out and sums.
void join_sinks(const at::Tensor& out, const at::Tensor& sums, const at::Tensor& sinks);

// The gradient of the sinks, fp32 [...], from out and sums as join_sinks left them.
at::Tensor sink_gradient(const at::Tensor& grad, const at::Tensor& out, const at::Tensor& sums,
                         const at::Tensor& sinks);

}  // namespace longshore
