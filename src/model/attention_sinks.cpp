#include "model/attention_sinks.h"

namespace longshore {

void join_sinks(const at::Tensor& out, const at::Tensor& sums, const at::Tensor& sinks) {
  const at::Tensor joined = at::logaddexp(sums, sinks.to(at::kFloat));
  out.mul_((sums - joined).exp_().unsqueeze(-1));
  sums.copy_(joined);
}

at::Tensor sink_gradient(const at::Tensor& grad, const at::Tensor& out, const at::Tensor& sums,
                         const at::Tensor& sinks) {
  // The sink's value is 0, so its score's gradient is minus its weight times grad * out.
  at::Tensor share = (sinks.to(at::kFloat) - sums).exp_();
  share.mul_((grad.to(at::kFloat) * out).sum(-1));
  // A matrix product is used because its bits do not depend on the number of threads.
  const at::Tensor rows = share.reshape({-1, share.size(-1)});
  const at::Tensor ones = at::ones({rows.size(1), 1}, rows.options());
  return at::mm(rows, ones).neg_().view(sinks.sizes().slice(0, sinks.dim() - 1));
}

}  // namespace longshore
