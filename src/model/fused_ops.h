// fused_ops: src/kernels over tensors. On a GPU they run on the current CUDA stream; on the CPU
// they run the kernels' references, which tests compare with LibTorch's ops. Without autograd; fp32
// and bf16; any thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "base/packed_format.h"

namespace longshore::fused {

// RMSNorm over the last dimension of contiguous x.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// Returns the gradient of x; adds the weight's to `weight_sum` (fp32; undefined: skipped).
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps, const at::Tensor& weight_sum);

// x is [T, heads * head_dim]; rows may be strided. `direction` is +1 or, to rotate back, -1.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& frequencies,
                  int64_t head_dim, int direction);

// Returns silu(gate) * up; both are contiguous.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
// Overwrites gate and up with their gradients.
void swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up);

// Writes the values of a packed matrix to contiguous `values` [rows, columns], or those of stacked
// matrices, each a row of `packed`, to [count, rows, columns]. `packed` is contiguous, of the same
// dtype, and holds the packed bytes.
void unpack(PackedFormat format, const at::Tensor& packed, const at::Tensor& values);

// Returns the losses, fp32 [rows], of logits [rows, vocabulary] and targets int64 [rows]. With
// `gradient` the gradient of scale * their sum overwrites the logits; `row_scales` (fp32 [rows], or
// undefined) are factors of the rows in that sum.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double scale,
                         bool gradient, const at::Tensor& row_scales = {});

}  // namespace longshore::fused
