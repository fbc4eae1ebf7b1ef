// clip: clipping by the global norm, as in torch.nn.utils.clip_grad_norm_. Pure function.
#pragma once

#include <algorithm>

namespace longshore {

// Returns the factor for every gradient; 1 if max_norm is 0 (no clipping).
inline double clip_scale(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace longshore
