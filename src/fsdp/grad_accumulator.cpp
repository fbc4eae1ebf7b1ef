#include "fsdp/grad_accumulator.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {
namespace {

// Rows of a product that are made at once when the factors are not fp32: bounds the temporary.
constexpr int64_t kProductRowElements = int64_t{1} << 20;

}  // namespace

RunningSum::RunningSum(const UnitSpec& unit, const FlatLayout& layout,
                       std::span<std::byte> memory) {
  const int64_t elements = layout.trainable_elements();
  LONGSHORE_CHECK(static_cast<int64_t>(memory.size()) >= elements * 4) << unit.name;
  sums_ = {reinterpret_cast<float*>(memory.data()), static_cast<size_t>(elements)};
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ParamSpec& parameter = unit.parameters[i];
    const ElementRange range = layout.parameter(static_cast<int32_t>(i));
    parameters_.push_back(parameter.frozen
                              ? at::Tensor()
                              : at::from_blob(sums_.data() + range.begin, parameter.shape,
                                              at::TensorOptions().dtype(at::kFloat)));
  }
}

void RunningSum::clear() {
  std::fill(sums_.begin(), sums_.end(), 0.0f);
}

void RunningSum::add(int32_t parameter, const at::Tensor& grad) {
  parameters_.at(static_cast<size_t>(parameter)).add_(grad);
}

void RunningSum::add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) {
  parameters_.at(static_cast<size_t>(parameter)).index_add_(0, rows, values.to(at::kFloat));
}

void RunningSum::add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) {
  at::Tensor& sum = parameters_.at(static_cast<size_t>(parameter));
  if (left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat) {
    sum.addmm_(left.t(), right);
    return;
  }
  const int64_t step = std::max<int64_t>(1, kProductRowElements / right.size(1));
  for (int64_t begin = 0; begin < sum.size(0); begin += step) {
    const int64_t end = std::min(begin + step, sum.size(0));
    sum.slice(0, begin, end).add_(at::mm(left.slice(1, begin, end).t(), right));
  }
}

}  // namespace longshore
