// cast_and_square: casts a gradient to bf16 (nearest even) for the offload of gradients and sums
// the squares of the cast values in double, in a fixed order. These are pure functions; any thread.
//
// In a block of kSquareBlock elements, element i belongs to lane i mod kSquareLanes. A lane adds
// its elements in order; lanes are then added as a balanced tree (lane + lanes / 2, and so on).
// Blocks are added over lanes and the tree in the same way. The CPU and the GPU give the same bits,
// because a product of two fp32 values is exact in double.
#pragma once

#include <cstdint>
#include <span>

struct CUstream_st;

namespace longshore::kernels {

inline constexpr int64_t kSquareLanes = 256;
inline constexpr int64_t kSquareBlock = 16 * kSquareLanes;
constexpr int64_t square_blocks(int64_t elements) {
  return (elements + kSquareBlock - 1) / kSquareBlock;
}

// Returns the sum of squares of bf16(values), which it writes to `bf16` (one per value), or of the
// values themselves if `bf16` is null. A NaN or an infinity makes the sum not finite.
double cast_and_square_cpu(std::span<const float> values, uint16_t* bf16);

// The GPU version sets *sum and does not add to it. `block_sums` is scratch of
// square_blocks(elements) doubles. All pointers refer to GPU memory.
void cast_and_square_cuda(const float* values, int64_t elements, uint16_t* bf16, double* block_sums,
                          double* sum, CUstream_st* stream);

}  // namespace longshore::kernels
