// The vectorised AdamW loops, chosen by SIMD level, and the scalar loop that they are held against.
// Internal to adamw.cpp.
#pragma once

#include "offload/optimizer/adamw.h"

namespace longshore::internal {

// The slice is consistent (adamw_step_at checks it); the CPU has `level`.
void adamw_kernel(SimdLevel level, const UpdateSlice& slice, const AdamWScalars& scalars);

void adamw_scalar(const UpdateSlice& slice, const AdamWScalars& scalars);

}  // namespace longshore::internal
