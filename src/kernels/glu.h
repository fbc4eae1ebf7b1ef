// The product of a gated linear unit (Shazeer, 2020: SwiGLU, GEGLU): y = f(gate) * up, and its
// backward
//   grad_up = grad * f(gate),  grad_gate = (grad * up) * f'(gate)
// Without `up` it is the activation alone: y = f(gate). f is silu(x) = x * sigmoid(x) or gelu with
// tanh, which is x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3). f(gate), grad * up and
// the results are rounded to the dtype, as in LibTorch. These are pure functions over rows of
// `width` values in `dtype` (fp32 or bf16).
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

enum class GluActivation : uint8_t { kSilu, kGeluTanh };

// u of gelu, times 2, is x * (kGeluLinear + kGeluCubic * x^2).
inline constexpr float kGeluLinear = 1.5957691216057308f;
inline constexpr float kGeluCubic = 0.07135481627260025f;

struct Glu {
  DType dtype = DType::kF32;
  GluActivation activation = GluActivation::kSilu;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t gate_stride = 0;  // from a row to the next; rows of y and grad are contiguous
  int64_t up_stride = 0;
};

// On the CPU a call computes the rows [begin, end). `up` may be null.
void glu_cpu(const Glu& shape, int64_t begin, int64_t end, const void* gate, const void* up,
             void* y);
// Writes grad_gate over gate and grad_up over up.
void glu_backward_cpu(const Glu& shape, int64_t begin, int64_t end, const void* grad, void* gate,
                      void* up);

void glu_cuda(const Glu& shape, const void* gate, const void* up, void* y, CUstream_st* stream);
void glu_backward_cuda(const Glu& shape, const void* grad, void* gate, void* up,
                       CUstream_st* stream);

}  // namespace longshore::kernels
