#include "kernels/cuda_values.h"
#include "kernels/gradient.h"

namespace longshore::kernels {
namespace {

// Adds lane + lanes / 2, then halves the width, down to one lane. Every thread returns the sum.
__device__ __forceinline__ double tree(double value) {
  __shared__ double lanes[kSquareLanes];
  lanes[threadIdx.x] = value;
  __syncthreads();
  for (int width = kSquareLanes / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) lanes[threadIdx.x] += lanes[threadIdx.x + width];
    __syncthreads();
  }
  return lanes[0];
}

template <bool kCast>
__global__ void square_block(const float* __restrict__ values, int64_t elements,
                             uint16_t* __restrict__ bf16, double* __restrict__ block_sums) {
  double sum = 0.0;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSquareBlock;
  for (int64_t i = begin + threadIdx.x; i < begin + kSquareBlock && i < elements;
       i += kSquareLanes) {
    float kept = values[i];
    if (kCast) {
      const __nv_bfloat16 cast = __float2bfloat16_rn(kept);
      // All NaNs become the same NaN, as on the CPU.
      bf16[i] = kept != kept ? 0x7fc0u : __bfloat16_as_ushort(cast);
      kept = __bfloat162float(cast);
    }
    sum += static_cast<double>(kept) * static_cast<double>(kept);
  }
  sum = tree(sum);
  if (threadIdx.x == 0) block_sums[blockIdx.x] = sum;
}

__global__ void add_blocks(const double* __restrict__ block_sums, int64_t blocks,
                           double* __restrict__ result) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < blocks; i += kSquareLanes) sum += block_sums[i];
  sum = tree(sum);
  if (threadIdx.x == 0) *result = sum;
}

}  // namespace

void cast_and_square_cuda(const float* values, int64_t elements, uint16_t* bf16, double* block_sums,
                          double* sum, CUstream_st* stream) {
  const int64_t blocks = square_blocks(elements);
  LONGSHORE_CHECK(blocks < INT32_MAX) << elements;
  constexpr int kThreads = kSquareLanes;
  if (blocks > 0 && bf16 != nullptr) {
    launch(square_block<true>, static_cast<unsigned>(blocks), kThreads, stream, values, elements,
           bf16, block_sums);
  } else if (blocks > 0) {
    launch(square_block<false>, static_cast<unsigned>(blocks), kThreads, stream, values, elements,
           nullptr, block_sums);
  }
  check_launch("cast_and_square");
  launch(add_blocks, 1, kThreads, stream, block_sums, blocks, sum);
  check_launch("cast_and_square, sum");
}

}  // namespace longshore::kernels
