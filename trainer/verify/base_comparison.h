// BaseComparison: a model's tensors beside those of the model that it was made from. Fine-tuning
// moves each a little; one that holds another's values, is scaled, or lies the other way round does
// not look like that. Reads 4,096 values of each tensor; one thread.
#pragma once

#include "trainer/model/model_source.h"
#include "trainer/verify/findings.h"

namespace longshore {

// Both models' values of one tensor at the same places, and what they tell.
struct Closeness {
  double distance = 0.0;  // |a - b| / |b|
  double scale = 1.0;     // s that makes |a - s b| least
  double residual = 0.0;  // |a - s b| / |a|
};
Closeness closeness(std::span<const float> a, std::span<const float> b);

// Says which tensors of `source` are missing from or unlike those of `base`: swapped, scaled,
// transposed, or unrelated.
void compare_with_base(const ModelSource& source, const ModelSource& base, Findings& findings);

}  // namespace longshore
