#include "model/unit.h"

#include "base/errors.h"

namespace longshore {

std::vector<at::Tensor> make_leaves(const std::vector<at::Tensor>& views) {
  std::vector<at::Tensor> leaves;
  leaves.reserve(views.size());
  for (const at::Tensor& view : views) leaves.push_back(view.detach());
  return leaves;
}

std::vector<at::Tensor> Unit::leaves(const std::vector<at::Tensor>& views) const {
  return make_leaves(views);
}

std::vector<at::Tensor> LossUnit::leaves(const std::vector<at::Tensor>& views) const {
  return make_leaves(views);
}

Carry Unit::backward(UnitParameters, const Carry&, const MicroBatch&, const Carry&,
                     GradSink&) const {
  LONGSHORE_CHECK(false) << "this unit's gradients come from autograd";
  return {};
}

}  // namespace longshore
