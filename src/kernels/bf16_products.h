// bf16_products: the tiles of row_products in bf16 on processors that multiply pairs of bf16
// (AVX-512 BF16). Highway's targets do not have that instruction, so row_products asks for it.
// Internal to src/kernels. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu_values.h"

namespace longshore::kernels {

// Returns whether this processor can run add_bf16_block.
bool multiplies_bf16_pairs();

// Rows of values along the inputs.
template <typename T>
struct Lines {
  const T* values;
  int64_t stride;
  Lines from(int64_t line, int64_t at = 0) const { return {values + line * stride + at, stride}; }
};

inline constexpr int64_t kTileOutputs = 4;  // the sums of a row that are neighbours in memory

// Adds the products of `count` inputs of `rows` rows with `outputs` <= kTileOutputs outputs to the
// 16 partial sums of each, in the order of row_products.h. `sums` is [rows, kTileOutputs, 16].
void add_bf16_block(Lines<Bf16> x, int64_t rows, Lines<Bf16> w, int64_t outputs, int64_t count,
                    float* sums);

}  // namespace longshore::kernels
