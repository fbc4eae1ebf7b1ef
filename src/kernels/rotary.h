// Rotary position embedding (Su et al., 2021) in the half-split form of transformers. Each head (a,
// b) of a row at position p, with angle_i = p * frequency_i, becomes
//   (a cos - b sin, b cos + a sin)
// cos, sin, every product and every sum are rounded to the dtype. Backward negates the angle. These
// are pure functions over x [rows, heads * head_dim] in `dtype` (fp32 or bf16).
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

struct Rotary {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;    // even
  int64_t row_stride = 0;  // stride of x in elements; the result is contiguous
  int direction = 1;       // -1 rotates back
};

// `positions` is [rows]; `frequencies` is fp32 [head_dim / 2].
void rotary_cpu(const Rotary& shape, const void* x, const int64_t* positions,
                const float* frequencies, void* out);
void rotary_cuda(const Rotary& shape, const void* x, const int64_t* positions,
                 const float* frequencies, void* out, CUstream_st* stream);

}  // namespace longshore::kernels
