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

// The columns of a state do not depend on each other. So a step passes over the rows with a few
// groups of columns at a time, which gives the processor several sums to add to.
constexpr int64_t kTogether = 4;

// Some columns of a head: kCount complete groups, or one that may be incomplete.
template <int64_t kCount>
struct Columns {
  const RecurrentStep& step;
  int64_t first;

  HWY_INLINE Group read(const float* row, int64_t g) const {
    if constexpr (kCount > 1) return load(row + first + g * kGroup);
    return load(row + first, step.values - first);
  }
  HWY_INLINE void write(const Group& group, float* row, int64_t g) const {
    if constexpr (kCount > 1) {
      store(group, row + first + g * kGroup);
    } else {
      store(group, row + first, step.values - first);
    }
  }

  // S = decay * S + key value^T; out = S^T query, where `value` are the values of these columns.
  HWY_INLINE void advance(const Group (&value)[kCount]) const {
    const Group decay = all(step.decay);
    Group sums[kCount];
    for (Group& sum : sums) sum = all(0.0f);
    float* row = step.state;
    for (int64_t i = 0; i < step.keys; ++i, row += step.values) {
      const Group key = all(step.key[i]), query = all(step.query[i]);
      for (int64_t g = 0; g < kCount; ++g) {
        const Group state = decay * read(row, g) + key * value[g];
        write(state, row, g);
        sums[g] = sums[g] + query * state;
      }
    }
    for (int64_t g = 0; g < kCount; ++g) write(sums[g], step.out, g);
  }

  HWY_INLINE void recur() const {
    Group value[kCount];
    for (int64_t g = 0; g < kCount; ++g) value[g] = read(step.value, g);
    advance(value);
  }

  HWY_INLINE void correct_and_recur(float beta) const {
    const Group decay = all(step.decay);
    Group known[kCount];
    for (Group& sum : known) sum = all(0.0f);
    const float* row = step.state;
    for (int64_t i = 0; i < step.keys; ++i, row += step.values) {
      const Group key = all(step.key[i]);
      for (int64_t g = 0; g < kCount; ++g) known[g] = known[g] + key * (decay * read(row, g));
    }
    Group value[kCount];
    for (int64_t g = 0; g < kCount; ++g) value[g] = all(beta) * (read(step.value, g) - known[g]);
    advance(value);
  }
};

void recurrent_step(const RecurrentStep& step) {
  int64_t column = 0;
  for (; column + kTogether * kGroup <= step.values; column += kTogether * kGroup) {
    Columns<kTogether>{step, column}.recur();
  }
  for (; column < step.values; column += kGroup) Columns<1>{step, column}.recur();
}

void delta_step(const RecurrentStep& step, float beta) {
  int64_t column = 0;
  for (; column + kTogether * kGroup <= step.values; column += kTogether * kGroup) {
    Columns<kTogether>{step, column}.correct_and_recur(beta);
  }
  for (; column < step.values; column += kGroup) {
    Columns<1>{step, column}.correct_and_recur(beta);
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
