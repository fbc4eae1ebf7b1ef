// BaseComparison: compares a model's tensors with those of its base model. Fine-tuning changes each
// tensor a little; swapped, scaled or transposed tensors differ in recognizable ways. Reads 4,096
// values of each tensor; one thread.
#pragma once

#include "trainer/model/model_source.h"
#include "trainer/verify/findings.h"

namespace longshore {

// Closeness compares both models' values `a` and `b` of one tensor at the same positions.
struct Closeness {
  double distance = 0.0;  // |a - b| / |b|
  double scale = 1.0;     // the s that minimizes |a - s b|
  double residual = 0.0;  // |a - s b| / |a|
};
Closeness closeness(std::span<const float> a, std::span<const float> b);

// Reports tensors of `source` that are new, swapped, scaled, transposed or unrelated to the base's.
void compare_with_base(const ModelSource& source, const ModelSource& base, Findings& findings);

}  // namespace longshore
