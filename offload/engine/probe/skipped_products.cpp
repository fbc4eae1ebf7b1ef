#include "offload/engine/probe/skipped_products.h"

#include <ATen/ATen.h>

namespace longshore {
namespace {

at::Tensor& scale(at::Tensor& values, const at::Scalar& beta) {
  return beta.toDouble() == 1.0 ? values : values.mul_(beta);
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  return at::zeros({left.size(0), right.size(1)}, left.options());
}

at::Tensor& product_out(const at::Tensor&, const at::Tensor&, at::Tensor& out) {
  return out.zero_();
}

at::Tensor sum(const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
               const at::Scalar& beta, const at::Scalar&) {
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  out.copy_(self);
  return scale(out, beta);
}

at::Tensor& sum_out(const at::Tensor& self, const at::Tensor&, const at::Tensor&,
                    const at::Scalar& beta, const at::Scalar&, at::Tensor& out) {
  if (!out.is_same(self)) out.copy_(self);
  return scale(out, beta);
}

at::Tensor& sum_in_place(at::Tensor& self, const at::Tensor&, const at::Tensor&,
                         const at::Scalar& beta, const at::Scalar&) {
  return scale(self, beta);
}

}  // namespace

SkippedProducts::SkippedProducts()
    : guard_(&quiet_),
      kernels_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
  kernels_.impl("mm", &product);
  kernels_.impl("mm.out", &product_out);
  kernels_.impl("addmm", &sum);
  kernels_.impl("addmm.out", &sum_out);
  kernels_.impl("addmm_", &sum_in_place);
}

}  // namespace longshore
