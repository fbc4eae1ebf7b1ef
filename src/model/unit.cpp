#include "model/unit.h"

#include "base/errors.h"

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

std::vector<int64_t> UnitCode::worst_documents(int64_t longest, DeviceKind) const {
  return {longest, 1};
}

Carry Unit::backward(UnitParameters, const Carry&, const MicroBatch&, const Carry&,
                     GradientSink&) const {
  LONGSHORE_CHECK(false) << "this unit's gradients come from autograd";
  return {};
}

at::Tensor Unit::logits(UnitParameters, const Carry&, const at::Tensor&) const {
  return {};
}

}  // namespace longshore
