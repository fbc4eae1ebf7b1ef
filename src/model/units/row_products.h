// row_products: operations over rows on the CPU in which the bits of a row do not depend on which
// or how many other rows there are, nor on the number of threads. Decoding computes with them
// (Linear::by_row): LibTorch promises no such thing, its products of few rows are slow, and its
// functions of single elements treat the last elements of a tensor otherwise than the others.
// Without autograd; any thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>

#include "model/units/stored_parameters.h"

namespace longshore::fused {

// Returns the products of x [T, in] with a matrix [out, in], or [in, out] if `transposed`, in the
// type of x, which the matrix's values are converted to. A packed matrix is read as it is. `bias`
// [out] may be undefined. kernels/row_products.h says in which order a sum is made.
at::Tensor row_products(const at::Tensor& x, const StoredMatrix& matrix, bool transposed = false,
                        const at::Tensor& bias = {});

// Adds factor times these products to y [T, out], of the type of x. Rows of y may be strided.
void add_row_products(const at::Tensor& y, const at::Tensor& x, const StoredMatrix& matrix,
                      bool transposed, double factor);

// Returns function(row) of every row of x [T, width], a tensor of the row's shape [1, width] each,
// as one tensor: each row is computed alone and by one thread.
at::Tensor each_row(const at::Tensor& x,
                    const std::function<at::Tensor(const at::Tensor&)>& function);

}  // namespace longshore::fused
