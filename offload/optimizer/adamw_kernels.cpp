// The loop of the update, written once with Highway and compiled for each instruction set. Sets
// without a fused multiply-add (x86-64 before AVX2) run the scalar reference instead.
//
// A step of the loop is two vectors, or a block of 8-bit moments. What is left at the end is copied
// into a step of zeros, updated there and copied back: the same instructions for every length.
#include "offload/optimizer/adamw_kernels.h"

#include "shard/moments.h"

// AES on whole vectors.
#define HWY_WANT_AVX3_DL
// Those that gain nothing here, and those whose vectors have no fixed size.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/adamw_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "offload/optimizer/adamw_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {

#if HWY_NATIVE_FMA

// How far ahead of the loop memory is asked for, in elements.
constexpr size_t kAheadElements = 512;

template <Form kForm, typename Gradient, MomentFormat kMoments>
struct Loop {
  using At = Streams<Gradient>;

  // Inlined by force: a function that only prefetches counts as one that does nothing.
  template <typename T>
  static HWY_INLINE void ask(const T* stream, size_t element) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(stream + element);
    constexpr size_t kBytes = kStep<kMoments> * sizeof(T);
    for (size_t line = 0; line < kBytes; line += 64) hwy::Prefetch(bytes + line);
  }

  static HWY_INLINE void prefetch(const At& at, size_t i) {
    using Stored = MomentType<kMoments>;
    ask(at.gradient, i);
    if constexpr (kForm == Form::kSplit) {
      ask(at.high, i);
      ask(at.low, i);
    } else {
      ask(at.master, i);
    }
    ask(reinterpret_cast<const Stored*>(at.m), i);
    ask(reinterpret_cast<const Stored*>(at.v), i);
  }

  static void run(const UpdateSlice& slice, const AdamWScalars& scalars) {
    const auto at = streams_of<Gradient>(slice);
    const VectorScalars s(scalars);
    RandomSource random(slice.rounding, kMoments);
    const size_t count = slice.elements();
    const size_t whole = count / kStep<kMoments> * kStep<kMoments>;
    const bool past_caches =
        kForm == Form::kMasterAndParameter && reinterpret_cast<uintptr_t>(at.high) % 64 == 0;
    for (size_t i = 0; i < whole; i += kStep<kMoments>) {
      prefetch(at, i + kAheadElements);
      if (past_caches) {
        step<kForm, Gradient, kMoments, true>(at.from(i), s, random);
      } else {
        step<kForm, Gradient, kMoments, false>(at.from(i), s, random);
      }
    }
    if (past_caches) hwy::FlushStream();
    if (whole < count) run_tail(at.from(whole), s, random, count - whole);
  }

  // `random` by value: with its address known, the loop would keep it in memory.
  static void run_tail(const At& at, const VectorScalars& s, RandomSource random, size_t count) {
    TailBuffer<Gradient, kMoments> buffer;
    buffer.fill(at, count);
    step<kForm, Gradient, kMoments, false>(buffer.streams(), s, random);
    buffer.give_back(at, count);
  }
};

template <typename Gradient>
void run_form(const UpdateSlice& slice, const AdamWScalars& scalars) {
  if (slice.low.empty()) {
    if (slice.high.empty()) {
      return Loop<Form::kMaster, Gradient, MomentFormat::kF32>::run(slice, scalars);
    }
    return Loop<Form::kMasterAndParameter, Gradient, MomentFormat::kF32>::run(slice, scalars);
  }
  switch (slice.exp_avg.format) {
    case MomentFormat::kF32:
      return Loop<Form::kSplit, Gradient, MomentFormat::kF32>::run(slice, scalars);
    case MomentFormat::kBF16:
      return Loop<Form::kSplit, Gradient, MomentFormat::kBF16>::run(slice, scalars);
    case MomentFormat::kInt8:
      return Loop<Form::kSplit, Gradient, MomentFormat::kInt8>::run(slice, scalars);
  }
}

void run_slice(const UpdateSlice& slice, const AdamWScalars& scalars) {
  if (slice.gradient_dtype == DType::kF32) {
    run_form<float>(slice, scalars);
  } else {
    run_form<uint16_t>(slice, scalars);
  }
}

#else

void run_slice(const UpdateSlice& slice, const AdamWScalars& scalars) {
  internal::adamw_scalar(slice, scalars);
}

#endif

}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore {

HWY_EXPORT(run_slice);

namespace {

// CPUID takes microseconds in a virtual machine: the CPU is asked once.
int64_t supported_targets() {
  static const int64_t targets = hwy::SupportedTargets();
  return targets;
}

#if HWY_ARCH_X86
// Highway gives better instruction sets lower bits.
constexpr int64_t at_least(int64_t target) {
  return 2 * target - 1;
}
#endif

int64_t targets_of(SimdLevel level) {
  const int64_t best = supported_targets() & HWY_TARGETS;
#if HWY_ARCH_X86
  if (level == SimdLevel::kBaseline) return best & ~at_least(HWY_AVX2);
  if (level == SimdLevel::kAvx2) return best & ~at_least(HWY_AVX3);
  if (level == SimdLevel::kAvx512) return best & ~at_least(HWY_AVX3_DL);
#endif
  static_cast<void>(level);
  return best;
}

}  // namespace

SimdLevel best_simd_level() {
#if HWY_ARCH_X86
  const int64_t targets = supported_targets();
  if ((targets & HWY_TARGETS & at_least(HWY_AVX3_DL)) != 0) return SimdLevel::kAvx512Vaes;
  if ((targets & HWY_AVX3) != 0) return SimdLevel::kAvx512;
  if ((targets & HWY_AVX2) != 0) return SimdLevel::kAvx2;
#endif
  return SimdLevel::kBaseline;
}

namespace internal {

void adamw_kernel(SimdLevel level, const UpdateSlice& slice, const AdamWScalars& scalars) {
  hwy::ChosenTarget chosen;
  chosen.Update(targets_of(level));
  HWY_DISPATCH_TABLE(run_slice)[chosen.GetIndex()](slice, scalars);
}

}  // namespace internal
}  // namespace longshore
#endif
