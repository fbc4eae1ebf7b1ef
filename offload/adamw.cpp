#include "offload/adamw.h"

#include <cmath>

#include "base/errors.h"
#include "base/number_formats.h"
#include "offload/adamw_formula.h"
#include "offload/adamw_kernels.h"

namespace longshore {
namespace {

void check_slice(const AdamWSlice& slice) {
  const size_t count = slice.exp_avg.size();
  const bool split = !slice.low.empty();
  LONGSHORE_CHECK(slice.exp_avg_sq.size() == count);
  LONGSHORE_CHECK(slice.master.size() == (split ? 0 : count)) << slice.master.size();
  LONGSHORE_CHECK(slice.low.size() == (split ? count : 0)) << slice.low.size();
  LONGSHORE_CHECK(slice.high.size() == count || (!split && slice.high.empty()));
  LONGSHORE_CHECK(slice.gradient_dtype != DType::kF16);
  LONGSHORE_CHECK(slice.gradient.size() ==
                  count * static_cast<size_t>(width_of(slice.gradient_dtype)))
      << slice.gradient.size() << " bytes of gradient for " << count << " elements";
}

float gradient_at(const AdamWSlice& slice, size_t i) {
  if (slice.gradient_dtype == DType::kF32) {
    return reinterpret_cast<const float*>(slice.gradient.data())[i];
  }
  return bf16_to_float(reinterpret_cast<const uint16_t*>(slice.gradient.data())[i]);
}

}  // namespace

AdamWScalars make_adamw_scalars(const AdamWOptions& options, int64_t update, double lr,
                                double clip_scale, bool decays) {
  LONGSHORE_CHECK(update >= 1) << update;
  const auto t = static_cast<double>(update);
  const double c1 = 1.0 - std::pow(options.beta1, t);
  const double c2 = 1.0 - std::pow(options.beta2, t);
  return {.clip_scale = static_cast<float>(clip_scale),
          .beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
          .keep = decays ? static_cast<float>(1.0 - lr * options.weight_decay) : 1.0f,
          .step_size = static_cast<float>(lr / c1),
          .inv_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2)),
          .eps = static_cast<float>(options.eps)};
}

std::string_view name_of(SimdLevel level) {
  switch (level) {
    case SimdLevel::kBaseline:
      return "baseline";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx512:
      return "avx512";
  }
  return "?";
}

SimdLevel best_simd_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2) return avx512 ? SimdLevel::kAvx512 : SimdLevel::kAvx2;
#endif
  return SimdLevel::kBaseline;
}

void adamw_step(const AdamWSlice& slice, const AdamWScalars& scalars) {
  static const SimdLevel level = best_simd_level();
  adamw_step_at(level, slice, scalars);
}

void adamw_step_at(SimdLevel level, const AdamWSlice& slice, const AdamWScalars& scalars) {
  check_slice(slice);
  internal::adamw_kernel(level, slice, scalars);
}

void adamw_step_reference(const AdamWSlice& slice, const AdamWScalars& scalars) {
  check_slice(slice);
  for (size_t i = 0; i < slice.exp_avg.size(); ++i) {
    const bool split = !slice.low.empty();
    float p = split ? join_master(slice.high[i], slice.low[i]) : slice.master[i];
    internal::adamw_element(gradient_at(slice, i), slice.exp_avg[i], slice.exp_avg_sq[i], p,
                            scalars);
    if (split) slice.low[i] = master_low(p);
    if (!split) slice.master[i] = p;
    if (!slice.high.empty()) slice.high[i] = master_high(p);
  }
}

}  // namespace longshore
