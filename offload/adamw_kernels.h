// The vectorised AdamW loops, chosen by SIMD level. Internal to adamw.cpp.
#pragma once

#include "offload/adamw.h"

namespace longshore::internal {

// The slice is consistent (adamw_step_at checks it); the CPU has `level`.
void adamw_kernel(SimdLevel level, const AdamWSlice& slice, const AdamWScalars& scalars) noexcept;

}  // namespace longshore::internal
