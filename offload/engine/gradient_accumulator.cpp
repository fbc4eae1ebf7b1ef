#include "offload/engine/gradient_accumulator.h"

#include <algorithm>

#include "base/errors.h"
#include "device/gpu_tensors.h"
#include "model/row_ops.h"

namespace longshore {
namespace {

// Elements that are added at once; bounds the temporary.
constexpr int64_t kPieceElements = int64_t{1} << 18;

// Adds left^T right.
void add_product_to(at::Tensor sum, const at::Tensor& left, const at::Tensor& right) {
  if (left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat) {
    sum.addmm_(left.t(), right);
    return;
  }
  if (on_gpu(left)) {
    // 16-bit products are accumulated in fp32 in place, without a temporary product.
    at::addmm_out(sum, sum, left.t(), right, at::kFloat);
    return;
  }
  const int64_t step = std::max<int64_t>(1, kPieceElements / right.size(1));
  for (int64_t begin = 0; begin < sum.size(0); begin += step) {
    const int64_t end = std::min(begin + step, sum.size(0));
    sum.slice(0, begin, end).add_(at::mm(left.slice(1, begin, end).t(), right));
  }
}

}  // namespace

RunningSum::RunningSum(const UnitSpec& unit, const FlatLayout& layout, std::span<std::byte> memory,
                       at::Device device) {
  const int64_t elements = layout.trainable_elements();
  LONGSHORE_CHECK(static_cast<int64_t>(memory.size()) >= elements * 4) << unit.name;
  sums_ = {reinterpret_cast<float*>(memory.data()), static_cast<size_t>(elements)};
  all_ = tensor_over(sums_.data(), {elements}, at::kFloat, device);
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ParamSpec& parameter = unit.parameters[i];
    const ElementRange range = layout.parameter(static_cast<int32_t>(i));
    parameters_.push_back(parameter.frozen ? at::Tensor()
                                           : tensor_over(sums_.data() + range.begin,
                                                         parameter.shape, at::kFloat, device));
  }
}

void RunningSum::clear() {
  all_.zero_();
}

void RunningSum::add(int32_t parameter, const at::Tensor& grad) {
  const at::Tensor& sum = parameters_.at(static_cast<size_t>(parameter));
  if (grad.scalar_type() == at::kFloat || on_gpu(grad)) {
    sum.add_(grad);  // a GPU converts during the addition
    return;
  }
  const at::Tensor flat_sum = sum.view({-1});
  const at::Tensor flat_grad = grad.contiguous().view({-1});
  for (int64_t begin = 0; begin < flat_sum.numel(); begin += kPieceElements) {
    const int64_t elements = std::min(kPieceElements, flat_sum.numel() - begin);
    flat_sum.narrow(0, begin, elements).add_(flat_grad.narrow(0, begin, elements));
  }
}

void RunningSum::add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) {
  add_to_rows(parameters_.at(static_cast<size_t>(parameter)), rows, values.to(at::kFloat));
}

void RunningSum::add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) {
  add_product_to(parameters_.at(static_cast<size_t>(parameter)), left, right);
}

void RunningSum::add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                                const at::Tensor& right) {
  add_product_to(parameters_.at(static_cast<size_t>(parameter)).select(0, matrix), left, right);
}

}  // namespace longshore
