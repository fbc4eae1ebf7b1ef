#include "model/head_math.h"

namespace longshore {

at::Tensor trained_positions(const at::Tensor& targets) {
  return at::nonzero(targets != kNotTrained).view({-1});
}

double ordered_sum(const at::Tensor& values) {
  const at::Tensor host = values.to(at::kCPU).contiguous();
  const float* data = host.const_data_ptr<float>();
  double sum = 0.0;
  for (int64_t i = 0; i < host.numel(); ++i) sum += data[i];
  return sum;
}

at::Tensor LogitRule::project(const at::Tensor& normed, const at::Tensor& table) const {
  at::Tensor logits = at::mm(normed, table.t());
  return divides() ? logits.div_(divisor_) : logits;
}

at::Tensor LogitRule::bend(const at::Tensor& logits) const {
  return logits.to(at::kFloat).div_(cap_).tanh_();
}

at::Tensor LogitRule::scores(const at::Tensor& normed, const at::Tensor& table) const {
  const at::Tensor raw = project(normed, table);
  return caps() ? bend(raw).mul_(cap_) : raw.to(at::kFloat);
}

at::Tensor LogitRule::by_product(at::Tensor grad, at::Tensor bent, const at::Tensor& like) const {
  if (bent.defined()) at::tanh_backward_out(grad, grad, bent);
  bent.reset();
  grad = grad.to(like.scalar_type());
  return divides() ? grad.div_(divisor_) : grad;
}

}  // namespace longshore
