// gate_values: the functions of gates of recurrences for single values. The last place of
// LibTorch's depends on the place of a value in its tensor (model/units/row_products.h). Pure
// functions.
#pragma once

#include <cmath>

#include "kernels/chunk_rows.h"

namespace longshore {

inline float sigmoid_of(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// Above 20 the result is x to the last place of fp32, as in LibTorch.
inline float softplus_of(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// Returns the factor of a state of which exp(exponent) is left.
inline float decay_of(float exponent) {
  return exponent < kernels::kLeastExponent ? 0.0f : std::exp(exponent);
}

}  // namespace longshore
