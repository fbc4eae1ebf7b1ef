#include "model/units/stored_parameters.h"

#include <algorithm>

#include "base/errors.h"
#include "model/ops/fused_ops.h"

namespace longshore {
namespace {

at::Tensor unpacked(const PackedForm& form, const at::Tensor& packed, at::IntArrayRef shape) {
  const at::NoGradGuard no_grad;
  at::Tensor values = at::empty(shape, packed.options().dtype(form.type));
  fused::unpack(form.format, packed, values);
  return values;
}

}  // namespace

int64_t StoredMatrix::size(int64_t dimension) const {
  return packed ? packed->shape.at(static_cast<size_t>(dimension)) : stored.size(dimension);
}

at::Tensor StoredMatrix::values() const {
  return packed ? unpacked(*packed, stored, packed->shape) : stored;
}

at::Tensor StoredMatrix::values_of(int64_t matrix) const {
  if (!packed) return stored.select(0, matrix);
  LONGSHORE_CHECK(packed->shape.size() == 3) << "matrix " << matrix << " of one matrix";
  return unpacked(*packed, stored.select(0, matrix), at::IntArrayRef(packed->shape).slice(1));
}

UnitParameters UnitParameters::first(size_t count) const {
  return {stored_.first(count), forms_.first(std::min(count, forms_.size()))};
}

UnitParameters UnitParameters::from(size_t begin) const {
  return {stored_.subspan(begin), forms_.subspan(std::min(begin, forms_.size()))};
}

PickedParameters::PickedParameters(UnitParameters parameters, const std::vector<int32_t>& indices) {
  for (const int32_t index : indices) {
    StoredMatrix one = parameters.at(static_cast<size_t>(index));
    stored_.push_back(std::move(one.stored));
    forms_.push_back(std::move(one.packed));
  }
}

}  // namespace longshore
