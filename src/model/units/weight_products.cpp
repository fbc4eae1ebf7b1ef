#include "model/units/weight_products.h"

#include <optional>
#include <unordered_map>

#include "base/errors.h"
#include "base/mutex.h"

namespace longshore {
namespace {

struct Target {
  GradientSink* sink = nullptr;
  int32_t parameter = 0;
};

// Engines of several ranks may be in one process, and a GPU's backward runs on autograd's thread.
Mutex& guard() {
  static Mutex mutex;
  return mutex;
}

std::unordered_map<const at::TensorImpl*, Target>& bound() {
  static std::unordered_map<const at::TensorImpl*, Target> targets;
  return targets;
}

std::optional<Target> find(const at::Tensor& weight) {
  const MutexLock lock(guard());
  const auto found = bound().find(weight.unsafeGetTensorImpl());
  return found == bound().end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

WeightProducts::WeightProducts(UnitParameters parameters, GradientSink* sink)
    : parameters_(parameters) {
  const MutexLock lock(guard());
  for (const at::Tensor& parameter : parameters_) {
    LONGSHORE_CHECK(!bound().contains(parameter.unsafeGetTensorImpl())) << "it is bound already";
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    bound()[parameters_[i].unsafeGetTensorImpl()] = {sink, static_cast<int32_t>(i)};
  }
}

WeightProducts::~WeightProducts() {
  const MutexLock lock(guard());
  for (const at::Tensor& parameter : parameters_) bound().erase(parameter.unsafeGetTensorImpl());
}

bool WeightProducts::add(const at::Tensor& weight, const at::Tensor& left,
                         const at::Tensor& right) {
  const std::optional<Target> target = find(weight);
  if (!target) return false;
  target->sink->add_product(target->parameter, left, right);
  return true;
}

}  // namespace longshore
