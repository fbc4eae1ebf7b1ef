// adamw_kernels: AdamW of one element, which kernels and scalar reference inline, and the loops
// over a slice, vectorised by SIMD level and scalar. m and v are the moments (exp_avg, exp_avg_sq),
// p is the master weight; adamw.h has the formula in full and the scalars of a step. Internal to
// adamw.cpp; pure functions, any thread.
#pragma once

#include "offload/optimizer/adamw.h"

namespace longshore::internal {

// Decays p, then moves it against the updated moments.
[[gnu::always_inline]] inline void adamw_parameter(float m, float v, float& p,
                                                   const AdamWScalars& s) {
  p = p * s.keep;
  p = p - s.step_size * m / (__builtin_sqrtf(v) * s.inv_sqrt_c2 + s.eps);
}

// Updates m, v and p. `__builtin_fmaf` is the IEEE operation at every SIMD level.
[[gnu::always_inline]] inline void adamw_element(float gradient, float& m, float& v, float& p,
                                                 const AdamWScalars& s) {
  const float g = gradient * s.clip_scale;
  m = __builtin_fmaf(s.beta1, m, s.one_minus_beta1 * g);
  v = __builtin_fmaf(s.beta2, v, s.one_minus_beta2 * g * g);
  adamw_parameter(m, v, p, s);
}

// Runs adamw_element for 8-bit moments, which were multiplied by beta when decoded.
[[gnu::always_inline]] inline void adamw_decayed_element(float gradient, float& m, float& v,
                                                         float& p, const AdamWScalars& s) {
  const float g = gradient * s.clip_scale;
  m = __builtin_fmaf(s.one_minus_beta1, g, m);
  v = __builtin_fmaf(s.one_minus_beta2 * g, g, v);
  adamw_parameter(m, v, p, s);
}

// The slice must be consistent (adamw_step_at checks it), and the CPU must have `level`.
void adamw_kernel(SimdLevel level, const UpdateSlice& slice, const AdamWScalars& scalars);

void adamw_scalar(const UpdateSlice& slice, const AdamWScalars& scalars);

}  // namespace longshore::internal
