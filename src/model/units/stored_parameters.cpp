#include "model/units/stored_parameters.h"

#include <algorithm>

#include "base/errors.h"
#include "model/ops/fused_ops.h"

namespace longshore {

int64_t StoredMatrix::size(int64_t dimension) const {
  if (!packed) return stored.size(dimension);
  return packed->shape.at(static_cast<size_t>(of_stack ? dimension + 1 : dimension));
}

at::Tensor StoredMatrix::values() const {
  if (!packed) return stored;
  const at::NoGradGuard no_grad;
  const auto shape = at::IntArrayRef(packed->shape).slice(of_stack ? 1 : 0);
  at::Tensor values = at::empty(shape, stored.options().dtype(packed->type));
  fused::unpack(packed->format, stored, values);
  return values;
}

StoredMatrix StoredMatrix::of_matrix(int64_t matrix) const {
  if (!defined()) return {};
  LONGSHORE_CHECK(!packed || packed->shape.size() == 3) << "matrix " << matrix << " of one matrix";
  return {.stored = stored.select(0, matrix), .packed = packed, .of_stack = true};
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
