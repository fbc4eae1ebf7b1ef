#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu_values.h"

namespace longshore::kernels {
namespace {

template <typename T>
float row_loss(const CrossEntropy& shape, T* row, int64_t target, float row_scale) {
  const int64_t count = shape.vocabulary;
  float most = to_float(row[0]);
  for (int64_t i = 1; i < count; ++i) most = std::max(most, to_float(row[i]));
  // The sum is in double: a sequential fp32 sum of 128,256 terms had a relative error of 2e-4.
  double exact_sum = 0.0;
  for (int64_t i = 0; i < count; ++i) exact_sum += std::exp(to_float(row[i]) - most);
  const auto sum = static_cast<float>(exact_sum);
  const float loss = std::log(sum) - (to_float(row[target]) - most);
  if (!shape.gradient) return loss;
  const float scale = static_cast<float>(shape.scale) * row_scale;
  for (int64_t i = 0; i < count; ++i) {
    const float probability = std::exp(to_float(row[i]) - most) / sum;
    row[i] = rounded_to<T>((probability - (i == target ? 1.0f : 0.0f)) * scale);
  }
  return loss;
}

}  // namespace

void cross_entropy_cpu(const CrossEntropy& shape, void* logits, const int64_t* targets,
                       float* losses) {
  with_type(shape.dtype, [&](auto type) {
    auto* row = static_cast<decltype(type)*>(logits);
    for (int64_t r = 0; r < shape.rows; ++r, row += shape.vocabulary) {
      LONGSHORE_CHECK(targets[r] >= 0 && targets[r] < shape.vocabulary) << targets[r];
      const float row_scale = shape.row_scales == nullptr ? 1.0f : shape.row_scales[r];
      losses[r] = row_loss(shape, row, targets[r], row_scale);
    }
  });
}

}  // namespace longshore::kernels
