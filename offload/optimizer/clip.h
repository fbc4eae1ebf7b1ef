// Clipping by the global norm, as torch.nn.utils.clip_grad_norm_ does it. Pure function.
#pragma once

#include <algorithm>

namespace longshore {

// The factor that every gradient is multiplied with; 1 when max_norm is 0 (no clipping).
inline double clip_scale(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace longshore
