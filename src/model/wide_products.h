// wide_products: sums of matrix products in fp32, whatever the dtype of the factors. Weight
// gradients are sums over micro-batches, and rounding each product to bf16 first would add error.
// Any thread.
#pragma once

#include <ATen/ATen.h>

namespace longshore {

// Adds left x right to `sum`, contiguous fp32 [rows, columns]. `left` is [rows, inner] and `right`
// [inner, columns], both fp32 or both bf16. On a CPU one in bf16 is copied if neither its rows nor
// its columns lie together.
void add_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

// Likewise, but overwrites `sum`, whose values are not read.
void set_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

// SkippedWideProducts: while one lives, the process's wide products write nothing. For a probe that
// measures memory alone and multiplies zeros.
class SkippedWideProducts {
 public:
  SkippedWideProducts();
  SkippedWideProducts(const SkippedWideProducts&) = delete;
  SkippedWideProducts& operator=(const SkippedWideProducts&) = delete;
  ~SkippedWideProducts();
};

}  // namespace longshore
