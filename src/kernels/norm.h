// RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016) over the last dimension,
// forward and backward, as in transformers. Each row x of `width` values becomes
//   n = (x - m) * rsqrt(mean((x - m)^2) + eps),  y = round(n * (offset + weight) + bias)
// m is the mean of the row if the norm is centred, else 0. round() rounds to the dtype, and n is
// rounded first if `rounds`; sums are in fp32. Backward, in fp32 and without that rounding, with h
// = grad * (offset + weight):
//   grad_x = (h - [mean(h)] - n * mean(h * n)) * rsqrt(...)    mean(h) if the norm is centred
//   weight_sum += sum over rows of grad * n,  bias_sum += sum over rows of grad
// These are pure functions. x, weight, bias, grad and results have `dtype` (fp32 or bf16); rows are
// contiguous.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace longshore::kernels {

struct Norm {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t width = 0;
  double eps = 0.0;
  bool rounds = true;    // n is rounded to the dtype before the weight
  bool centred = false;  // LayerNorm
  float offset = 0.0f;   // Gemma has 1
};

// On the CPU a call computes the rows [begin, end). A sum over a row has the same order in all
// rows. `bias` may be null.
void norm_cpu(const Norm& shape, int64_t begin, int64_t end, const void* x, const void* weight,
              const void* bias, void* y);
// Adds to `weight_sum` and `bias_sum`, fp32 [width], row by row; skips those that are null.
void norm_backward_cpu(const Norm& shape, int64_t begin, int64_t end, const void* grad,
                       const void* x, const void* weight, void* grad_x, float* weight_sum,
                       float* bias_sum);
// Adds the rows of contiguous `values` to `sum`, in order.
void add_rows_cpu(const float* values, int64_t rows, int64_t width, float* sum);

// On the GPU the order of every sum depends on the shape, and on whether all operands and rows are
// 16-byte aligned, which allows 16-byte loads.
void norm_cuda(const Norm& shape, const void* x, const void* weight, const void* bias, void* y,
               CUstream_st* stream);
// `partial` is fp32 scratch of norm_partial_elements for each sum that is not null.
void norm_backward_cuda(const Norm& shape, const void* grad, const void* x, const void* weight,
                        void* grad_x, float* weight_sum, float* bias_sum, float* partial,
                        CUstream_st* stream);

// Rows are spread over as many partial sums, each of a thread block: enough to fill a GPU. A narrow
// row keeps few threads busy (a head of 128 values one warp), so it gets as many blocks as 4 MiB of
// scratch have sums.
inline constexpr int64_t kLeastNormPartials = 256;
inline constexpr int64_t kNormPartialElements = int64_t{1} << 20;
constexpr int64_t norm_partials(int64_t rows, int64_t width) {
  return std::min(rows, std::max(kLeastNormPartials, kNormPartialElements / width));
}
constexpr int64_t norm_partial_elements(int64_t rows, int64_t width) {
  return norm_partials(rows, width) * width;
}

}  // namespace longshore::kernels
