#include "fsdp/carry_store.h"

#include "base/errors.h"
#include "fsdp/parameter_views.h"

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

constexpr int32_t kNobody = -1;

UnitId before(UnitId unit) {
  return UnitId(unit.value - 1);
}

}  // namespace

CarryStore::CarryStore(const ModelSpec& spec, DType dtype, Memory memory, at::Device device)
    : spec_(&spec), dtype_(dtype), device_(device), memory_(std::move(memory)) {
  LONGSHORE_CHECK(memory_.inputs.size() + 1 == spec.units.size()) << memory_.inputs.size();
  for (const auto& places : memory_.inputs) {
    if (!places.empty()) tags_[places.front().data()] = kNobody;
  }
}

std::atomic<int32_t>& CarryStore::tag(UnitId unit) {
  return tags_.at(memory_.inputs.at(static_cast<size_t>(unit.value - 1)).front().data());
}

void CarryStore::check_tag(UnitId unit) const {
  const int32_t held = const_cast<CarryStore*>(this)->tag(unit);
  LONGSHORE_CHECK(held == unit.value)
      << "the place of unit " << unit << "'s input holds that of unit " << held;
}

Carry CarryStore::views(UnitId producer, std::span<std::byte> memory, int64_t positions,
                        CarryUse use) const {
  Carry carry;
  std::byte* cursor = memory.data();
  for (const CarryTensorSpec& tensor : spec_->unit(producer).carry_out) {
    const at::ScalarType dtype = scalar_type_of(tensor.dtype(dtype_, use));
    const at::Tensor view = at::from_blob(cursor, {positions, tensor.elements_per_position},
                                          at::TensorOptions().dtype(dtype).device(device_));
    cursor += view.nbytes();
    carry.push_back(view);
  }
  LONGSHORE_CHECK(cursor <= memory.data() + memory.size())
      << positions << " positions do not fit the planned carry of unit " << producer;
  return carry;
}

void CarryStore::keep_input(UnitId unit, int32_t micro_batch, const Carry& carry) {
  const int64_t positions = carry.empty() ? 0 : carry.front().size(0);
  tag(unit) = unit.value;
  copy_all(carry, input(unit, micro_batch, positions));
}

std::span<const std::byte> CarryStore::saved_bytes(UnitId unit, int32_t micro_batch) const {
  check_tag(unit);
  return memory_.inputs.at(static_cast<size_t>(unit.value - 1))
      .at(static_cast<size_t>(micro_batch));
}

std::span<std::byte> CarryStore::loaded_bytes(UnitId unit, int32_t micro_batch) {
  tag(unit) = unit.value;
  return memory_.inputs.at(static_cast<size_t>(unit.value - 1))
      .at(static_cast<size_t>(micro_batch));
}

Carry CarryStore::input(UnitId unit, int32_t micro_batch, int64_t positions) const {
  if (unit.value == 0) return {};
  check_tag(unit);
  const auto& places = memory_.inputs.at(static_cast<size_t>(unit.value - 1));
  return views(before(unit), places.at(static_cast<size_t>(micro_batch)), positions,
               CarryUse::kValue);
}

void CarryStore::keep_gradient(UnitId unit, int32_t micro_batch, const Carry& gradient) {
  const int64_t positions = gradient.empty() ? 0 : gradient.front().size(0);
  copy_all(gradient, gradient_out(before(unit), micro_batch, positions));
}

Carry CarryStore::gradient_out(UnitId unit, int32_t micro_batch, int64_t positions) const {
  return views(unit, memory_.gradients.at(static_cast<size_t>(micro_batch)), positions,
               CarryUse::kGradient);
}

}  // namespace longshore
