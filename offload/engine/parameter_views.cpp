#include "offload/engine/parameter_views.h"

#include "base/errors.h"

namespace longshore {
namespace {

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

c10::Storage make_storage(Bytes bytes, c10::Device device) {
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
                                            c10::DataPtr(nullptr, device), nullptr, false));
}

}  // namespace

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
  }
  return at::kFloat;
}

ParameterViews::ParameterViews(const Model& model, const std::vector<FlatLayout>& layouts,
                               DType compute, at::Device device)
    : device_(device) {
  const ModelSpec& spec = model.spec();
  const at::TensorOptions options =
      at::TensorOptions().dtype(scalar_type_of(compute)).device(device);
  std::vector<std::vector<at::Tensor>> owned(spec.units.size());
  for (const UnitSpec& unit : spec.units) {
    const FlatLayout& layout = layouts.at(static_cast<size_t>(unit.id.value));
    storages_.push_back(make_storage(layout.flat_elements() * width_of(compute), device));
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const std::vector<int64_t>& shape = unit.parameters[i].shape;
      const bool halves = unit.parameters[i].in_halves;
      const int64_t begin = layout.parameter(static_cast<int32_t>(i)).begin;
      owned[static_cast<size_t>(unit.id.value)].push_back(
          at::empty({0}, halves ? options.dtype(at::kFloat) : options)
              .set_(storages_.back(), halves ? begin / kHalves : begin, shape,
                    contiguous_strides(shape)));
    }
  }
  for (const UnitSpec& unit : spec.units) {
    std::vector<at::Tensor> views = owned[static_cast<size_t>(unit.id.value)];
    std::vector<bool> trainable;
    for (const ParamSpec& parameter : unit.parameters) trainable.push_back(!parameter.frozen);
    for (ParamRef ref : unit.tied) {
      views.push_back(owned[static_cast<size_t>(ref.unit.value)][static_cast<size_t>(ref.index)]);
      trainable.push_back(!spec.parameter(ref).frozen);
    }
    const bool last = unit.id.value + 1 == static_cast<int32_t>(spec.units.size());
    leaves_.push_back(last ? model.loss_unit().leaves(views) : model.unit(unit.id).leaves(views));
    for (size_t i = 0; i < views.size(); ++i) {
      leaves_.back()[i].requires_grad_(trainable[i]);
    }
  }
}

void ParameterViews::bind(const UnitLease& lease) {
  c10::StorageImpl* storage =
      storages_.at(static_cast<size_t>(lease.unit().value)).unsafeGetStorageImpl();
  LONGSHORE_CHECK(lease.bytes().size() == storage->nbytes()) << "unit " << lease.unit();
  storage->set_data_ptr_noswap(c10::DataPtr(lease.bytes().data(), device_));
}

}  // namespace longshore
