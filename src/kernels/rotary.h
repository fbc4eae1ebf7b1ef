// Rotary position embedding (Su et al., 2021), as in transformers. Each pair of values (a, b) of a
// head in a row at position p, with angle_i = p * frequency_i in fp32, becomes
//   (a cos - b sin, b cos + a sin)
// The first `turned` values of a head form the pairs: value i with value i + turned / 2, or
// neighbours if `pairs`. The rest stays. cos and sin are multiplied by `scale` and rounded to the
// dtype, as is every product and every sum. Backward negates the angle. These are pure functions
// over x [rows, heads * head_dim] in `dtype` (fp32 or bf16).
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

struct Rotary {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t turned = 0;      // even, at most head_dim
  int64_t row_stride = 0;  // stride of x in elements; the result is contiguous
  int64_t frequency_stride =
      0;  // from a row's frequencies to the next row's; 0 if all share one row
  float scale = 1.0f;
  bool pairs = false;  // neighbours rotate together instead of the halves
  int direction = 1;   // -1 rotates back
};

// `positions` is [rows]; `frequencies` is fp32 [turned / 2], one row or one for each row of x. On
// the CPU a call computes the rows [begin, end); sines and cosines are exact but for their
// rounding.
void rotary_cpu(const Rotary& shape, int64_t begin, int64_t end, const void* x,
                const int64_t* positions, const float* frequencies, void* out);
void rotary_cuda(const Rotary& shape, const void* x, const int64_t* positions,
                 const float* frequencies, void* out, CUstream_st* stream);

}  // namespace longshore::kernels
