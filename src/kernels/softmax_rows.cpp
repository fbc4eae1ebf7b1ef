#include "kernels/softmax_rows.h"

#include <cmath>
#include <limits>

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax_rows.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"
#include "kernels/softmax_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

// Writes zeros to the columns that a row does not see.
template <typename T>
HWY_INLINE void hide(const ScoreBlock& block, VisibleColumns visible, T* row) {
  std::fill(row, row + visible.first, T{});
  std::fill(row + visible.end, row + block.columns, T{});
}

void softmax_block(const ScoreBlock& block, float* scores, float* largest, float* sums,
                   float* factors, void* weights) {
  with_type(block.dtype, [&](auto type) HWY_ATTR {
    auto* out = static_cast<decltype(type)*>(weights);
    for (int64_t row = 0; row < block.rows; ++row, scores += block.columns, out += block.columns) {
      const VisibleColumns visible = block.visible[row];
      hide(block, visible, out);
      factors[row] = 1.0f;
      const int64_t count = visible.end - visible.first;
      if (count == 0) continue;
      float* const seen = scores + visible.first;
      const float most = std::max(largest[row], finish_scores(block.scale, block.cap, count, seen));
      const Group shift = all(most);
      Group total = all(0.0f);
      for (int64_t i = 0; i < count; i += kGroup) {
        const Group values = first(weights_of(load(seen + i, count - i) - shift), count - i);
        total = total + values;
        store(values, out + visible.first + i, count - i);
      }
      factors[row] = std::exp(largest[row] - most);
      sums[row] = sums[row] * factors[row] + sum(total);
      largest[row] = most;
    }
  });
}

void softmax_block_backward(const ScoreBlock& block, const float* scores, const float* weight_grads,
                            const float* log_sums, const float* along, void* weights,
                            void* score_grads) {
  const bool capped = block.cap != 0.0f;
  const Group scale = all(block.scale), cap = all(block.cap), one = all(1.0f);
  const Group inner = all(capped ? block.scale / block.cap : block.scale);
  with_type(block.dtype, [&](auto type) HWY_ATTR {
    auto* out = static_cast<decltype(type)*>(weights);
    auto* grads = static_cast<decltype(type)*>(score_grads);
    for (int64_t row = 0; row < block.rows; ++row) {
      const VisibleColumns visible = block.visible[row];
      const int64_t begin = row * block.columns + visible.first;
      const int64_t count = visible.end - visible.first;
      hide(block, visible, out + row * block.columns);
      hide(block, visible, grads + row * block.columns);
      const Group shift = all(log_sums[row]), less = all(along[row]);
      for (int64_t i = 0; i < count; i += kGroup) {
        const int64_t left = count - i;
        Group values = inner * load(scores + begin + i, left);
        Group slope = scale;
        if (capped) {
          const Group bent = tanh(values);
          values = cap * bent;
          slope = scale * (one - bent * bent);
        }
        const Group weight = weights_of(values - shift);
        const Group upper = load(weight_grads + begin + i, left);
        store(weight, out + begin + i, left);
        store(weight * (upper - less) * slope, grads + begin + i, left);
      }
    }
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(softmax_block);
HWY_EXPORT(softmax_block_backward);

void softmax_block(const ScoreBlock& block, float* scores, float* largest, float* sums,
                   float* factors, void* weights) {
  HWY_DYNAMIC_DISPATCH(softmax_block)(block, scores, largest, sums, factors, weights);
}
void softmax_block_backward(const ScoreBlock& block, const float* scores, const float* weight_grads,
                            const float* log_sums, const float* along, void* weights,
                            void* score_grads) {
  HWY_DYNAMIC_DISPATCH(softmax_block_backward)
  (block, scores, weight_grads, log_sums, along, weights, score_grads);
}

}  // namespace longshore::kernels
#endif
