// What a drain does with a gradient: cast it to bf16 (nearest even) and sum the squares of what is
// kept, in double, in a fixed order. Pure functions.
//
// The order: blocks of kSquareBlock elements; in a block, element i goes to lane i mod
// kSquareLanes, lanes add in the order of elements and are then added as a balanced tree (lane +
// lanes / 2, and so on); blocks go to lanes and tree the same way. The CPU and the GPU give the
// same bits: a product of two fp32 values is exact in double.
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

// Sum of squares of what is kept: bf16(values) where `bf16` (as many elements) is not null, else
// values themselves. A NaN or an infinity makes the sum not finite.
double cast_and_square_cpu(std::span<const float> values, uint16_t* bf16);

// On the GPU; *sum is set (not added to). `block_sums`: square_blocks(elements) doubles of scratch.
// All pointers are the GPU's.
void cast_and_square_cuda(const float* values, int64_t elements, uint16_t* bf16, double* block_sums,
                          double* sum, CUstream_st* stream);

}  // namespace longshore::kernels
