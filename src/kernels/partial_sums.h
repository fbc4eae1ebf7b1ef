// partial_sums: the last step of a gradient that is a sum over rows, after a kernel that wrote
// lines of partial sums. Only *.cu files include it. The order of a sum depends on the count of
// lines alone.
#pragma once

#include "kernels/cuda_values.h"

namespace longshore::kernels {

// Adds the lines, one block for each weight: there may be few weights and many lines.
static __global__ void add_lines(int64_t lines, int64_t weights, const float* __restrict__ partial,
                                 float* __restrict__ sum) {
  for (int64_t at = blockIdx.x; at < weights; at += gridDim.x) {
    float value = 0.0f;
    for (int64_t line = threadIdx.x; line < lines; line += blockDim.x) {
      value += partial[line * weights + at];
    }
    value = over_block(value, Add(), 0.0f);
    if (threadIdx.x == 0) sum[at] += value;
  }
}

// Adds `lines` lines of `weights` partial sums to `sum`.
static inline void add_partials(int64_t lines, int64_t weights, const float* partial, float* sum,
                                cudaStream_t stream) {
  launch(add_lines, blocks_for(weights), static_cast<unsigned>(threads_for(lines)), stream, lines,
         weights, partial, sum);
}

}  // namespace longshore::kernels
