#include "model/units/unit.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "model/units/weight_products.h"

namespace longshore {

std::vector<at::Tensor> make_leaves(const std::vector<at::Tensor>& views) {
  std::vector<at::Tensor> leaves;
  leaves.reserve(views.size());
  for (const at::Tensor& view : views) leaves.push_back(view.detach());
  return leaves;
}

std::vector<at::Tensor> UnitCode::leaves(const std::vector<at::Tensor>& views) const {
  return make_leaves(views);
}

Carry Unit::backward(UnitParameters, const Carry&, const MicroBatch&, const Carry&,
                     GradientSink&) const {
  LONGSHORE_CHECK(false) << "this unit's gradients come from autograd";
  return {};
}

at::Tensor Unit::logits(UnitParameters, const Carry&, const MicroBatch&, const at::Tensor&) const {
  return {};
}

Carry autograd_backward(UnitParameters parameters, const Carry& in, const Carry& out,
                        const Carry& grad_out, bool want_grad_in, GradientSink& sink) {
  torch::autograd::variable_list inputs, roots, root_gradients;
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters.stored()[i].requires_grad()) continue;
    inputs.push_back(parameters.stored()[i]);
    wanted.push_back(static_cast<int32_t>(i));
  }
  if (want_grad_in) inputs.insert(inputs.end(), in.begin(), in.end());
  Carry passed(in.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto same =
        std::ranges::find_if(in, [&](const at::Tensor& tensor) { return out[i].is_same(tensor); });
    if (same != in.end()) {
      passed[static_cast<size_t>(same - in.begin())] = grad_out.at(i);
    } else if (out[i].requires_grad()) {
      roots.push_back(out[i]);
      // A gradient that several units add to is fp32 whatever the tensor.
      root_gradients.push_back(grad_out.at(i).to(out[i].scalar_type()));
    }
  }
  torch::autograd::variable_list grads(inputs.size());
  if (!roots.empty() && !inputs.empty()) {
    const WeightProducts products(parameters, roots, &sink);
    grads = torch::autograd::grad(roots, inputs, root_gradients, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (grads[i].defined()) sink.add(wanted[i], grads[i]);
    grads[i].reset();
  }
  if (!want_grad_in) return {};
  Carry result(grads.begin() + std::ssize(wanted), grads.end());
  for (size_t i = 0; i < in.size(); ++i) {
    if (!passed[i].defined()) continue;
    if (result[i].defined()) passed[i].add_(result[i]);
    result[i] = passed[i];
  }
  return result;
}

}  // namespace longshore
