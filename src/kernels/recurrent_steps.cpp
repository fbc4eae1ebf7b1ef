#include "kernels/recurrent_steps.h"

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/recurrent_steps.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

// The columns of a state do not depend on each other, so each group of them passes over the rows.

void recurrent_step(const RecurrentStep& step) {
  const Group decay = all(step.decay);
  for (int64_t column = 0; column < step.values; column += kGroup) {
    const int64_t left = step.values - column;
    const Group value = load(step.value + column, left);
    Group sum = all(0.0f);
    float* row = step.state + column;
    for (int64_t i = 0; i < step.keys; ++i, row += step.values) {
      const Group state = decay * load(row, left) + all(step.key[i]) * value;
      store(state, row, left);
      sum = sum + all(step.query[i]) * state;
    }
    store(sum, step.out + column, left);
  }
}

void delta_step(const RecurrentStep& step, float beta) {
  const Group decay = all(step.decay);
  for (int64_t column = 0; column < step.values; column += kGroup) {
    const int64_t left = step.values - column;
    Group known = all(0.0f);
    float* row = step.state + column;
    for (int64_t i = 0; i < step.keys; ++i, row += step.values) {
      const Group state = decay * load(row, left);
      store(state, row, left);
      known = known + all(step.key[i]) * state;
    }
    const Group corrected = all(beta) * (load(step.value + column, left) - known);
    Group sum = all(0.0f);
    row = step.state + column;
    for (int64_t i = 0; i < step.keys; ++i, row += step.values) {
      const Group state = load(row, left) + all(step.key[i]) * corrected;
      store(state, row, left);
      sum = sum + all(step.query[i]) * state;
    }
    store(sum, step.out + column, left);
  }
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(recurrent_step);
HWY_EXPORT(delta_step);

void recurrent_step(const RecurrentStep& step) {
  HWY_DYNAMIC_DISPATCH(recurrent_step)(step);
}

void delta_step(const RecurrentStep& step, float beta) {
  HWY_DYNAMIC_DISPATCH(delta_step)(step, beta);
}

}  // namespace longshore::kernels
#endif
