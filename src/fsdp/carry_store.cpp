#include "fsdp/carry_store.h"

#include "base/errors.h"

namespace longshore {
namespace {

void copy_all(const Carry& from, const Carry& to) {
  LONGSHORE_CHECK(from.size() == to.size()) << from.size() << " tensors, expected " << to.size();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    LONGSHORE_CHECK(from[i].sizes() == to[i].sizes())
        << "carry tensor " << i << " has shape " << from[i].sizes() << ", the plan says "
        << to[i].sizes();
    to[i].copy_(from[i]);
  }
}

UnitId before(UnitId unit) {
  return UnitId(unit.value - 1);
}

}  // namespace

CarryStore::CarryStore(const ModelSpec& spec, at::ScalarType dtype, Memory memory)
    : spec_(&spec), dtype_(dtype), memory_(std::move(memory)) {
  LONGSHORE_CHECK(memory_.inputs.size() + 1 == spec.units.size()) << memory_.inputs.size();
}

Carry CarryStore::views(UnitId producer, std::span<std::byte> memory, int64_t positions) const {
  Carry carry;
  std::byte* cursor = memory.data();
  for (const CarryTensorSpec& tensor : spec_->unit(producer).carry_out) {
    const at::Tensor view = at::from_blob(cursor, {positions, tensor.elements_per_position},
                                          at::TensorOptions().dtype(dtype_));
    cursor += view.nbytes();
    carry.push_back(view);
  }
  LONGSHORE_CHECK(cursor <= memory.data() + memory.size())
      << positions << " positions do not fit the planned carry of unit " << producer;
  return carry;
}

void CarryStore::keep_input(UnitId unit, int32_t micro_batch, const Carry& carry) {
  const int64_t positions = carry.empty() ? 0 : carry.front().size(0);
  copy_all(carry, input(unit, micro_batch, positions));
}

Carry CarryStore::input(UnitId unit, int32_t micro_batch, int64_t positions) const {
  if (unit.value == 0) return {};
  const auto& places = memory_.inputs.at(static_cast<size_t>(unit.value - 1));
  return views(before(unit), places.at(static_cast<size_t>(micro_batch)), positions);
}

void CarryStore::keep_gradient(UnitId unit, int32_t micro_batch, const Carry& gradient) {
  const int64_t positions = gradient.empty() ? 0 : gradient.front().size(0);
  copy_all(gradient, gradient_out(before(unit), micro_batch, positions));
}

Carry CarryStore::gradient_out(UnitId unit, int32_t micro_batch, int64_t positions) const {
  return views(unit, memory_.gradients.at(static_cast<size_t>(micro_batch)), positions);
}

}  // namespace longshore
