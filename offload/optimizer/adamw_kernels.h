// adamw_kernels: AdamW loops, vectorised by SIMD level and scalar. Internal to adamw.cpp.
#pragma once

#include "offload/optimizer/adamw.h"

namespace longshore::internal {

// The slice must be consistent (adamw_step_at checks it), and the CPU must have `level`.
void adamw_kernel(SimdLevel level, const UpdateSlice& slice, const AdamWScalars& scalars);

void adamw_scalar(const UpdateSlice& slice, const AdamWScalars& scalars);

}  // namespace longshore::internal
