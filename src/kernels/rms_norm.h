// RMSNorm over the last dimension, forward and backward, as Llama's (Zhang and Sennrich, 2019;
// transformers' LlamaRMSNorm): each row x of `width` values becomes
//   n = round(x * rsqrt(mean(x^2) + eps)),  y = round(n * weight)
// where round() goes to the dtype, and sums are taken in fp32. Backward, with h = grad * weight and
// v = x * rsqrt(...), in fp32:
//   grad_x = (h - v * mean(h * v)) * rsqrt(...),  weight_sum += sum over rows of grad * v
// Pure functions; x, weight, grad and the results have `dtype` (fp32 or bf16), rows are contiguous.
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

// The reference: one thread, sums in the order of elements.
void rms_norm_cpu(const RmsNorm& shape, const void* x, const void* weight, void* y);
// `weight_sum` fp32 [width] is added to; null: not wanted.
void rms_norm_backward_cpu(const RmsNorm& shape, const void* grad, const void* x,
                           const void* weight, void* grad_x, float* weight_sum);

// On the GPU. The order of every sum depends on the shape, and on whether all operands begin on 16
// bytes and rows are a multiple of that: then so much is loaded at a time.
void rms_norm_cuda(const RmsNorm& shape, const void* x, const void* weight, void* y,
                   CUstream_st* stream);
// `partial`: fp32 scratch of rms_norm_partial_elements, unused without `weight_sum`.
void rms_norm_backward_cuda(const RmsNorm& shape, const void* grad, const void* x,
                            const void* weight, void* grad_x, float* weight_sum, float* partial,
                            CUstream_st* stream);

// Rows are dealt out to so many sums; enough to fill a GPU, few enough for little scratch.
inline constexpr int64_t kRmsNormPartials = 256;
constexpr int64_t rms_norm_partial_elements(int64_t rows, int64_t width) {
  return (rows < kRmsNormPartials ? rows : kRmsNormPartials) * width;
}

}  // namespace longshore::kernels
