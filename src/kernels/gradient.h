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

// Writes bf16(values) to `bf16` (one per value; null: no cast), and the sum of squares of each
// block of the result to `block_sums`, square_blocks of them. A NaN or an infinity makes its
// block's sum not finite.
void cast_and_square_blocks(std::span<const float> values, uint16_t* bf16, double* block_sums);
double add_block_sums(std::span<const double> block_sums);

// Does both, and returns the sum.
double cast_and_square_cpu(std::span<const float> values, uint16_t* bf16);

// The GPU version sets *sum and does not add to it. `block_sums` is scratch of
// square_blocks(elements) doubles. All pointers refer to GPU memory.
void cast_and_square_cuda(const float* values, int64_t elements, uint16_t* bf16, double* block_sums,
                          double* sum, CUstream_st* stream);

}  // namespace longshore::kernels
