// attention_sinks: a sink is one more score for each head, which takes a share of the softmax and
// adds no value. It is added after attention without sinks: out is scaled by the share left over,
// and the log-sum-exp includes the sink. The kernels' own backward over both then gives the
// gradients with sinks. Compute thread only.
#pragma once

#include <ATen/ATen.h>

namespace longshore {

// The arguments are views of one piece: out [..., rows, head_dim], sums fp32 [..., rows], sinks
// [..., 1], with heads as "...". Overwrites out and sums.
void join_sinks(const at::Tensor& out, const at::Tensor& sums, const at::Tensor& sinks);

// Returns the gradient of the sinks, fp32 [...], from out and sums as join_sinks wrote them.
at::Tensor sink_gradient(const at::Tensor& grad, const at::Tensor& out, const at::Tensor& sums,
                         const at::Tensor& sinks);

}  // namespace longshore
