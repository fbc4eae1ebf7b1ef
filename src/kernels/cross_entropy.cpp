#include "kernels/cross_entropy.h"

#include <cmath>

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

// Values whose exponentials are added in fp32 before they go to the sum in double. Sums of 128,256
// terms in fp32 alone had a relative error of 2e-4.
constexpr int64_t kTogether = 64 * kGroup;

template <typename T>
HWY_INLINE float largest_of(const T* row, int64_t count) {
  Group most = load(row, count, row[0]);
  for (int64_t i = kGroup; i < count; i += kGroup) {
    most = larger(most, load(row + i, count - i, row[0]));
  }
  return largest(most);
}

// Writes what CrossEntropy::statistics has of a row. `sum` is that of exp(l - most), `products`
// that of exp(l - most) * (l - most).
template <typename T>
HWY_INLINE void put_statistics(const T* row, int64_t target, float most, double sum,
                               double products, float* statistics) {
  const bool highest = to_float(row[target]) == most;
  // An equal logit of a lower id is the highest instead.
  const bool lowest = highest && (target == 0 || largest_of(row, target) < most);
  statistics[0] = lowest ? 1.0f : 0.0f;
  statistics[1] = static_cast<float>(std::log(sum) - products / sum);
}

template <typename T>
HWY_INLINE float row_loss(const CrossEntropy& shape, T* row, int64_t target, float row_scale,
                          float* statistics) {
  const int64_t count = shape.vocabulary;
  const float most = largest_of(row, count);
  const Group shift = all(most), least = all(kLeastEntropyExponent);
  double exact_sum = 0.0, exact_products = 0.0;
  for (int64_t begin = 0; begin < count; begin += kTogether) {
    const int64_t end = std::min(begin + kTogether, count);
    Group sums = all(0.0f), products = all(0.0f);
    for (int64_t i = begin; i < end; i += kGroup) {
      const Group exponent = load(row + i, end - i) - shift;
      const Group power = first(exp(exponent), end - i);
      sums = sums + power;
      products = products + power * larger(exponent, least);
    }
    exact_sum += static_cast<double>(sum(sums));
    exact_products += static_cast<double>(sum(products));
  }
  const auto total = static_cast<float>(exact_sum);
  const float wanted = to_float(row[target]) - most;
  if (statistics != nullptr) {
    put_statistics(row, target, most, exact_sum, exact_products, statistics);
  }
  if (shape.gradient) {
    const float scale = static_cast<float>(shape.scale) * row_scale;
    const Group by = all(total), times = all(scale);
    for (int64_t i = 0; i < count; i += kGroup) {
      store(exp(load(row + i, count - i) - shift) / by * times, row + i, count - i);
    }
    row[target] = rounded_to<T>((std::exp(wanted) / total - 1.0f) * scale);
  }
  return std::log(total) - wanted;
}

void cross_entropy(const CrossEntropy& shape, void* logits, const int64_t* targets, float* losses) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    auto* row = static_cast<decltype(type)*>(logits);
    for (int64_t r = 0; r < shape.rows; ++r, row += shape.vocabulary) {
      LONGSHORE_CHECK(targets[r] >= 0 && targets[r] < shape.vocabulary) << targets[r];
      const float row_scale = shape.row_scales == nullptr ? 1.0f : shape.row_scales[r];
      float* const statistics = shape.statistics == nullptr ? nullptr : shape.statistics + 2 * r;
      losses[r] = row_loss(shape, row, targets[r], row_scale, statistics);
    }
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(cross_entropy);

void cross_entropy_cpu(const CrossEntropy& shape, void* logits, const int64_t* targets,
                       float* losses) {
  HWY_DYNAMIC_DISPATCH(cross_entropy)(shape, logits, targets, losses);
}

}  // namespace longshore::kernels
#endif
