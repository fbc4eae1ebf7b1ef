// Fused ops: src/kernels over tensors. On a GPU they run on the current CUDA stream; on the CPU
// they are the kernels' references, which tests compare with LibTorch's own ops. Without autograd;
// fp32 and bf16; any thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace longshore::fused {

// RMSNorm of the last dimension of contiguous x.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// The gradient of x; that of the weight is added to `weight_sum` (fp32; undefined: not wanted).
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps, const at::Tensor& weight_sum);

// x [T, heads * head_dim], rows may be strided. direction +1 rotates forward, -1 back.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& frequencies,
                  int64_t head_dim, int direction);

// silu(gate) * up, contiguous.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
// Overwrites gate and up with their gradients.
void swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up);

// The losses, fp32 [rows], of logits [rows, vocabulary] and targets int64 [rows]. With `gradient`
// the logits become the gradient of scale * their sum.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double scale,
                         bool gradient);

}  // namespace longshore::fused
