// The element-wise loops are written once and compiled for each SIMD level; the compiler vectorises
// them. Compiled with -O3 -fno-math-errno, so that sqrt becomes an instruction, and as everything
// with -ffp-contract=off, so that only the written fma is one.
#include "offload/adamw_kernels.h"

#include "base/number_formats.h"
#include "offload/adamw_formula.h"

#if defined(__x86_64__)
#define LONGSHORE_TARGET_AVX2 [[gnu::target("avx2,fma,bmi,bmi2")]]
#define LONGSHORE_TARGET_AVX512 \
  [[gnu::target("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]]
#endif

namespace longshore::internal {
namespace {

// Bare pointers of a slice: what a loop needs.
template <typename Gradient>
struct Pointers {
  float* __restrict master;
  uint16_t* __restrict high;
  uint16_t* __restrict low;
  float* __restrict m;
  float* __restrict v;
  const Gradient* __restrict gradient;
  size_t count;
};

[[gnu::always_inline]] inline float to_float(float value) {
  return value;
}
[[gnu::always_inline]] inline float to_float(uint16_t bits) {
  return bf16_to_float(bits);
}

enum class Form { kMaster, kMasterAndParameter, kSplit };

template <Form kForm, typename Gradient>
[[gnu::always_inline]] inline void loop(const Pointers<Gradient>& at, const AdamWScalars& scalars) {
  float* __restrict master = at.master;
  uint16_t* __restrict high = at.high;
  uint16_t* __restrict low = at.low;
  float* __restrict exp_avg = at.m;
  float* __restrict exp_avg_sq = at.v;
  const Gradient* __restrict gradient = at.gradient;
  const AdamWScalars s = scalars;
  for (size_t i = 0; i < at.count; ++i) {
    float p = kForm == Form::kSplit ? join_master(high[i], low[i]) : master[i];
    float m = exp_avg[i];
    float v = exp_avg_sq[i];
    adamw_element(to_float(gradient[i]), m, v, p, s);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    if constexpr (kForm == Form::kSplit) low[i] = master_low(p);
    if constexpr (kForm != Form::kSplit) master[i] = p;
    if constexpr (kForm != Form::kMaster) high[i] = master_high(p);
  }
}

template <typename Gradient>
[[gnu::always_inline]] inline void choose_form(const AdamWSlice& slice,
                                               const AdamWScalars& scalars) {
  const Pointers<Gradient> at{
      slice.master.data(),     slice.high.data(),
      slice.low.data(),        slice.exp_avg.data(),
      slice.exp_avg_sq.data(), reinterpret_cast<const Gradient*>(slice.gradient.data()),
      slice.exp_avg.size()};
  if (!slice.low.empty()) {
    loop<Form::kSplit>(at, scalars);
  } else if (!slice.high.empty()) {
    loop<Form::kMasterAndParameter>(at, scalars);
  } else {
    loop<Form::kMaster>(at, scalars);
  }
}

[[gnu::always_inline]] inline void choose_gradient(const AdamWSlice& slice,
                                                   const AdamWScalars& scalars) {
  if (slice.gradient_dtype == DType::kF32) {
    choose_form<float>(slice, scalars);
  } else {
    choose_form<uint16_t>(slice, scalars);
  }
}

void run_baseline(const AdamWSlice& slice, const AdamWScalars& scalars) {
  choose_gradient(slice, scalars);
}

#if defined(__x86_64__)
LONGSHORE_TARGET_AVX2 void run_avx2(const AdamWSlice& slice, const AdamWScalars& scalars) {
  choose_gradient(slice, scalars);
}

LONGSHORE_TARGET_AVX512 void run_avx512(const AdamWSlice& slice, const AdamWScalars& scalars) {
  choose_gradient(slice, scalars);
}
#endif

}  // namespace

void adamw_kernel(SimdLevel level, const AdamWSlice& slice, const AdamWScalars& scalars) noexcept {
#if defined(__x86_64__)
  if (level == SimdLevel::kAvx512) return run_avx512(slice, scalars);
  if (level == SimdLevel::kAvx2) return run_avx2(slice, scalars);
#endif
  static_cast<void>(level);
  run_baseline(slice, scalars);
}

}  // namespace longshore::internal
