// RMSNorm over the last dimension, forward and backward, as in Llama (Zhang and Sennrich, 2019;
// transformers' LlamaRMSNorm). Each row x of `width` values becomes
//   n = round(x * rsqrt(mean(x^2) + eps)),  y = round(n * weight)
// round() rounds to the dtype; sums are in fp32. Backward, in fp32, with h = grad * weight and v =
// x * rsqrt(...):
//   grad_x = (h - v * mean(h * v)) * rsqrt(...),  weight_sum += sum over rows of grad * v
// These are pure functions. x, weight, grad and results have `dtype` (fp32 or bf16); rows are
// contiguous.
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace longshore::kernels {

struct RmsNorm {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t width = 0;
  double eps = 0.0;
};

// The reference uses one thread and sums in the order of elements.
void rms_norm_cpu(const RmsNorm& shape, const void* x, const void* weight, void* y);
// Adds to `weight_sum`, fp32 [width]; if it is null, skips the weight's gradient.
void rms_norm_backward_cpu(const RmsNorm& shape, const void* grad, const void* x,
                           const void* weight, void* grad_x, float* weight_sum);

// On the GPU the order of every sum depends on the shape, and on whether all operands and rows are
// 16-byte aligned, which allows 16-byte loads.
void rms_norm_cuda(const RmsNorm& shape, const void* x, const void* weight, void* y,
                   CUstream_st* stream);
// `partial` is fp32 scratch of rms_norm_partial_elements, unused if `weight_sum` is null.
void rms_norm_backward_cuda(const RmsNorm& shape, const void* grad, const void* x,
                            const void* weight, void* grad_x, float* weight_sum, float* partial,
                            CUstream_st* stream);

// Rows are spread over this many partial sums: enough to fill a GPU, with little scratch.
inline constexpr int64_t kRmsNormPartials = 256;
constexpr int64_t rms_norm_partial_elements(int64_t rows, int64_t width) {
  return (rows < kRmsNormPartials ? rows : kRmsNormPartials) * width;
}

}  // namespace longshore::kernels
