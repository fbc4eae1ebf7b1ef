#include "model/ops/row_ops.h"

#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/arange.h>

#include <optional>

#include "base/errors.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

void put(const at::Tensor& to, std::initializer_list<at::Tensor> numbers, const at::Tensor& values,
         bool add) {
  LONGSHORE_CHECK(to.is_contiguous()) << "rows by index would copy all of the tensor twice";
  c10::List<std::optional<at::Tensor>> indices;
  for (const at::Tensor& number : numbers) indices.push_back(number);
  at::Tensor target = to;
  at::_index_put_impl_(target, indices, values, /*accumulate=*/add, /*unsafe=*/true);
}

}  // namespace

void copy_rows(const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values) {
  if (on_gpu(to)) {
    put(to, {rows}, values, /*add=*/false);
  } else {
    to.index_copy_(0, rows, values);
  }
}

void add_to_rows(const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values) {
  if (on_gpu(to)) {
    put(to, {rows}, values, /*add=*/true);
  } else {
    to.index_add_(0, rows, values);
  }
}

void add_in_rows(const at::Tensor& to, const at::Tensor& columns, const at::Tensor& values) {
  if (on_gpu(to)) {
    put(to, {at::arange(to.size(0), columns.options()), columns.view({-1})}, values.view({-1}),
        /*add=*/true);
  } else {
    to.scatter_add_(1, columns, values);
  }
}

}  // namespace longshore
