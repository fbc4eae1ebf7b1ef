// SwiGLU's product (Shazeer, 2020): y = silu(gate) * up with silu(g) = g / (1 + exp(-g)), and its
// backward
//   grad_up = grad * silu(gate),  grad_gate = (grad * up) * s * (1 + gate * (1 - s))
// with s = 1 / (1 + exp(-gate)). silu(gate), grad * up and the results are rounded to the dtype, as
// in LibTorch. These are pure functions over contiguous arrays of `elements` values in `dtype`
// (fp32 or bf16).
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

// On the CPU a call computes the elements [begin, end).
void swiglu_cpu(DType dtype, int64_t begin, int64_t end, const void* gate, const void* up, void* y);
// Writes grad_gate over gate and grad_up over up.
void swiglu_backward_cpu(DType dtype, int64_t begin, int64_t end, const void* grad, void* gate,
                         void* up);

void swiglu_cuda(DType dtype, int64_t elements, const void* gate, const void* up, void* y,
                 CUstream_st* stream);
void swiglu_backward_cuda(DType dtype, int64_t elements, const void* grad, void* gate, void* up,
                          CUstream_st* stream);

}  // namespace longshore::kernels
