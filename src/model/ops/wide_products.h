// wide_products: sums of matrix products in fp32, whatever the dtype of the factors. Weight
// gradients are sums over micro-batches, and rounding each product to bf16 first would add error.
// Any thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "base/dtype.h"

namespace longshore {

// Adds left x right to `sum`, contiguous fp32 [rows, columns]. `left` is [rows, inner] and `right`
// [inner, columns], both fp32 or both bf16. On a CPU one in bf16 is copied if neither its rows nor
// its columns lie together.
void add_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

// Likewise, but overwrites `sum`, whose values are not read.
void set_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

// A factor of block_product: a matrix whose rows are `stride` elements apart. With `transposed` the
// product reads its columns as rows.
struct BlockFactor {
  const void* values;
  int64_t stride;
  bool transposed = false;
};

// Writes left x right to `sum`, fp32 [rows, columns] with rows `stride` elements apart, or adds it
// if `adds`. The factors are fp32 or bf16 in host memory. For small products inside parallel_for.
void block_product(DType dtype, int64_t rows, int64_t columns, int64_t inner,
                   const BlockFactor& left, const BlockFactor& right, bool adds, float* sum,
                   int64_t stride);

}  // namespace longshore
