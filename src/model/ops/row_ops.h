// row_ops: writes and adds rows of a tensor by index. On a GPU the host does not wait: with
// repeatable bits LibTorch's index_copy_, index_add_ and scatter_add_ become index_put_, which
// copies the smallest and largest index to the host to check them. These functions skip the check
// on a GPU, so indices must be in range (they come from nonzero() or from forward's tokens). The
// sort behind it is stable, so sums repeat. On a GPU `to` must be contiguous: LibTorch would make a
// contiguous copy of all of it, and copy that back, however few the rows. Compute thread only.
#pragma once

#include <ATen/core/Tensor.h>

namespace longshore {

// Sets to[rows[i]] = values[i]. `rows` is int64 [N] without duplicates.
void copy_rows(const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values);
// Adds values[i] to to[rows[i]], in the order of i.
void add_to_rows(const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values);
// Adds values[i] to to[i][columns[i]]. `columns` is int64 [N, 1]; `values` is [N, 1].
void add_in_rows(const at::Tensor& to, const at::Tensor& columns, const at::Tensor& values);

}  // namespace longshore
