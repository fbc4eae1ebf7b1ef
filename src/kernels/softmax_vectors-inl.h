// softmax_vectors: the scores of attention and their weights in groups of sixteen, which
// softmax_rows and continued_rows share. Internal to src/kernels; included once for each
// instruction set, after cpu_vectors-inl.h. Any thread.
#if defined(LONGSHORE_SOFTMAX_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_SOFTMAX_VECTORS
#undef LONGSHORE_SOFTMAX_VECTORS
#else
#define LONGSHORE_SOFTMAX_VECTORS
#endif

#include <limits>

#include "kernels/chunk_rows.h"
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

HWY_INLINE Group tanh(Group values) {
  for (FloatVector& part : values.parts) {
    // A NaN stays one.
    part = hn::IfThenElse(hn::IsNaN(part), part, hn::Tanh(Floats(), part));
  }
  return values;
}

// Multiplies a row's scores by the factor and caps them (0: no cap) in place, and returns the
// largest.
HWY_INLINE float finish_scores(float factor, float bound, int64_t count, float* scores) {
  const Group scale = all(bound == 0.0f ? factor : factor / bound);
  const Group cap = all(bound);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Group most = all(kNone);
  for (int64_t i = 0; i < count; i += kGroup) {
    Group values = scale * load(scores + i, count - i);
    if (bound != 0.0f) values = cap * tanh(values);
    store(values, scores + i, count - i);
    most = larger(most, load(scores + i, count - i, kNone));
  }
  return largest(most);
}

// Returns the weights of scores relative to the largest, or to their log-sum-exp.
HWY_INLINE Group weights_of(const Group& scores) {
  Group weights = exp(scores);
  for (int64_t i = 0; i < kParts; ++i) {
    const auto least = hn::Set(Floats(), kLeastExponent);
    weights.parts[i] = hn::IfThenZeroElse(hn::Lt(scores.parts[i], least), weights.parts[i]);
  }
  return weights;
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
