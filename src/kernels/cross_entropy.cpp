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

template <typename T>
HWY_INLINE float row_loss(const CrossEntropy& shape, T* row, int64_t target, float row_scale) {
  const int64_t count = shape.vocabulary;
  const float most = largest_of(row, count);
  const Group shift = all(most);
  double exact_sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += kTogether) {
    const int64_t end = std::min(begin + kTogether, count);
    Group sums = all(0.0f);
    for (int64_t i = begin; i < end; i += kGroup) {
      sums = sums + first(exp(load(row + i, end - i) - shift), end - i);
    }
    exact_sum += static_cast<double>(sum(sums));
  }
  const auto total = static_cast<float>(exact_sum);
  const float wanted = to_float(row[target]) - most;
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
      losses[r] = row_loss(shape, row, targets[r], row_scale);
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
