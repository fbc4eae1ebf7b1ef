// Rows of a tensor written and added to by their numbers. On a GPU the host does not wait:
// LibTorch's index_copy_, index_add_ and scatter_add_ become index_put_ where bits must repeat,
// which copies the smallest and the largest number to the host to look at them. Here nobody looks
// on a GPU: numbers must be in range, and are (positions that nonzero() found, tokens that forward
// read rows of). The sort behind it is stable, so that sums repeat. Compute thread only.
#pragma once

#include <ATen/core/Tensor.h>

namespace longshore {

// to[rows[i]] = values[i]. rows: int64 [N], all different.
void copy_rows(const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values);
// to[rows[i]] += values[i], in the order of i.
void add_to_rows(const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values);
// to[i][columns[i]] += values[i]. columns: int64 [N, 1]; values: [N, 1].
void add_in_rows(const at::Tensor& to, const at::Tensor& columns, const at::Tensor& values);

}  // namespace longshore
