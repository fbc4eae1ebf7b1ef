// adamw_kernels: the update loop, written once with Highway and compiled for each instruction set.
// Sets without a fused multiply-add (x86-64 before AVX2) run the scalar reference instead.
//
// A step of the loop is a few vectors, or a block of narrow moments. The remainder is copied into a
// step of zeros, updated there and copied back, so all lengths use the same instructions.
#include "offload/optimizer/adamw_kernels.h"

#include "shard/moments.h"

// Enables AES on whole vectors.
#define HWY_WANT_AVX3_DL
#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/adamw_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "base/processor.h"
#include "offload/optimizer/adamw_vectors-inl.h"
#include "offload/optimizer/ars_vectors-inl.h"
#include "offload/optimizer/code_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {

#if HWY_NATIVE_FMA

// Updates two vectors with fp32 moments.
template <Form kForm, typename Gradient, bool kPastCaches>
HWY_INLINE void step_f32(const Streams<Gradient>& at, const VectorScalars& s) {
  auto* m_at = reinterpret_cast<float*>(at.m);
  auto* v_at = reinterpret_cast<float*>(at.v);
  FloatVector m0 = load_float(m_at);
  FloatVector m1 = load_float(m_at + kLanes);
  FloatVector v0 = load_float(v_at);
  FloatVector v1 = load_float(v_at + kLanes);
  FloatVector p0 = load_master<kForm>(at, 0);
  FloatVector p1 = load_master<kForm>(at, kLanes);
  update(load_float(at.gradient), m0, v0, p0, s);
  update(load_float(at.gradient + kLanes), m1, v1, p1, s);
  hn::StoreU(m0, Floats(), m_at);
  hn::StoreU(m1, Floats(), m_at + kLanes);
  hn::StoreU(v0, Floats(), v_at);
  hn::StoreU(v1, Floats(), v_at + kLanes);
  store_masters<kForm, kPastCaches>(at, 0, p0, p1);
}

// Updates two vectors with bf16 moments. All state is in half words, so elements go in pairs.
template <typename Gradient>
HWY_INLINE void step_bf16(const Streams<Gradient>& at, const VectorScalars& s, WordVector random) {
  auto* m_at = reinterpret_cast<uint16_t*>(at.m);
  auto* v_at = reinterpret_cast<uint16_t*>(at.v);
  const EvenOdd gradient = load_pairs(at.gradient);
  EvenOdd m = load_pairs(m_at);
  EvenOdd v = load_pairs(v_at);
  EvenOdd p = load_split_pairs(at.high, at.low, s);
  update(gradient.even, m.even, v.even, p.even, s);
  update(gradient.odd, m.odd, v.odd, p.odd, s);
  store_bf16_stochastic(m, hn::BitCast(Both(), random), m_at);
  store_bf16_stochastic(v, hn::BitCast(Both(), hn::RotateRight<16>(random)), v_at);
  store_split_pairs(p, at.high, at.low, s);
}

// Updates a block of kMomentBlockElements with bf16 moments in two passes, for few registers.
template <typename Gradient>
HWY_INLINE void step_bf16_block(const Streams<Gradient>& at, const VectorScalars& s,
                                RandomSource& source) {
  const Both both;
  auto* m_at = reinterpret_cast<uint16_t*>(at.m);
  auto* v_at = reinterpret_cast<uint16_t*>(at.v);
  WideMoments wide;
  auto largest = hn::Zero(both);
  source.refill();
  for (size_t i = 0; i < kMomentBlockElements; i += 2 * kLanes) {
    const EvenOdd gradient = load_pairs(at.gradient + i);
    EvenOdd m = load_pairs(m_at + i);
    EvenOdd v = load_pairs(v_at + i);
    update_moments(gradient.even, m.even, v.even, s);
    update_moments(gradient.odd, m.odd, v.odd, s);
    wide.store(i, m, v);
    const auto words = hn::BitCast(Words(), source.next(i));
    const WordVector lower = hn::AndNot(words, hn::Set(Words(), 0xffffu));
    const WordVector upper = hn::ShiftRight<16>(hn::Not(words));
    const auto m_high = halves_of_sums(m, lower, upper);
    const auto v_high = halves_of_sums(v, upper, lower);
    largest = hn::Max(largest, hn::Max(hn::Add(m_high, m_high), hn::Add(v_high, v_high)));
    hn::StoreU(m_high, both, m_at + i);
    hn::StoreU(v_high, both, v_at + i);
  }
  if (!all_below_largest_finite(largest)) {
    for (size_t i = 0; i < kMomentBlockElements; i += 2 * kLanes) {
      const auto words = hn::BitCast(Words(), source.next(i));
      store_bf16_stochastic(wide.m_at(i), hn::BitCast(both, words), m_at + i);
      store_bf16_stochastic(wide.v_at(i), hn::BitCast(both, hn::RotateRight<16>(words)), v_at + i);
    }
  }
  update_parameters(at, s, wide);
}

template <Form kForm, typename Gradient, MomentFormat kMoments, bool kPastCaches>
HWY_INLINE void step(const Streams<Gradient>& at, const VectorScalars& s, const CodeConstants& c,
                     RandomSource& source) {
  if constexpr (kMoments == MomentFormat::kInt8) {
    step_int8(at, s, c, source);
  } else if constexpr (kMoments == MomentFormat::kBF16) {
    // With an fp32 gradient a NaN may have a lower half, which only step_bf16 cuts off.
    if constexpr (kFewRegisters && sizeof(Gradient) == 2) {
      step_bf16_block(at, s, source);
    } else {
      source.refill();
      for (size_t i = 0; i < kStep<kMoments>; i += 2 * kLanes) {
        step_bf16(at.from(i), s, hn::BitCast(Words(), source.next(i)));
      }
    }
  } else {
    step_f32<kForm, Gradient, kPastCaches>(at, s);
  }
}

// A buffer of one step, of which only the first elements belong to the slice.
template <typename Gradient, MomentFormat kMoments>
class TailBuffer {
 public:
  using At = Streams<Gradient>;
  static constexpr size_t kElements = kStep<kMoments>;
  static constexpr size_t kMomentWidth = sizeof(MomentType<kMoments>);

  void fill(const At& at, size_t count) {
    copy(master_, at.master, count);
    copy(high_, at.high, count);
    copy(low_, at.low, count);
    copy(m_, at.m, count * kMomentWidth);
    copy(v_, at.v, count * kMomentWidth);
    copy(gradient_, at.gradient, count);
    copy(&m_unit_, at.m_units, 1);
    copy(&v_unit_, at.v_units, 1);
  }
  At streams() {
    return {master_, high_, low_, m_, v_, &m_unit_, &v_unit_, gradient_, kMomentWidth};
  }
  void give_back(const At& at, size_t count) {
    copy(at.master, master_, count);
    copy(at.high, high_, count);
    copy(at.low, low_, count);
    copy(at.m, m_, count * kMomentWidth);
    copy(at.v, v_, count * kMomentWidth);
    copy(at.m_units, &m_unit_, 1);
    copy(at.v_units, &v_unit_, 1);
  }

 private:
  template <typename T>
  static void copy(T* to, const T* from, size_t count) {
    if (to != nullptr && from != nullptr) std::memcpy(to, from, count * sizeof(T));
  }

  alignas(64) float master_[kElements] = {};
  alignas(64) uint16_t high_[kElements] = {};
  alignas(64) uint16_t low_[kElements] = {};
  alignas(64) std::byte m_[kElements * kMomentWidth] = {};
  alignas(64) std::byte v_[kElements * kMomentWidth] = {};
  alignas(64) Gradient gradient_[kElements] = {};
  float m_unit_ = 0.0f;
  float v_unit_ = 0.0f;
};

// The prefetch distance in elements.
constexpr size_t kAheadElements = 512;

template <Form kForm, typename Gradient, MomentFormat kMoments>
struct Loop {
  using At = Streams<Gradient>;

  // Forced inline, because the compiler treats a function that only prefetches as empty.
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

  static void run(const UpdateSlice& slice, const AdamWScalars& scalars, internal::ArsFill fill) {
    const auto at = streams_of<Gradient>(slice);
    const VectorScalars s(scalars);
    const CodeConstants constants;
    RandomSource random(slice.rounding, fill);
    const size_t count = slice.elements();
    const size_t whole = count / kStep<kMoments> * kStep<kMoments>;
    const bool past_caches =
        kForm == Form::kMasterAndParameter && reinterpret_cast<uintptr_t>(at.high) % 64 == 0;
    for (size_t i = 0; i < whole; i += kStep<kMoments>) {
      prefetch(at, i + kAheadElements);
      if (past_caches) {
        step<kForm, Gradient, kMoments, true>(at.from(i), s, constants, random);
      } else {
        step<kForm, Gradient, kMoments, false>(at.from(i), s, constants, random);
      }
    }
    if (past_caches) hwy::FlushStream();
    if (whole < count) run_tail(at.from(whole), s, constants, random, count - whole);
  }

  // `random` is passed by value: if its address were taken, the loop would keep it in memory.
  static void run_tail(const At& at, const VectorScalars& s, const CodeConstants& constants,
                       RandomSource random, size_t count) {
    TailBuffer<Gradient, kMoments> buffer;
    buffer.fill(at, count);
    step<kForm, Gradient, kMoments, false>(buffer.streams(), s, constants, random);
    buffer.give_back(at, count);
  }
};

template <typename Gradient>
void run_form(const UpdateSlice& slice, const AdamWScalars& scalars, internal::ArsFill fill) {
  if (slice.low.empty()) {
    if (slice.high.empty()) {
      return Loop<Form::kMaster, Gradient, MomentFormat::kF32>::run(slice, scalars, fill);
    }
    return Loop<Form::kMasterAndParameter, Gradient, MomentFormat::kF32>::run(slice, scalars, fill);
  }
  switch (exp_avg(slice).format) {
    case MomentFormat::kF32:
      return Loop<Form::kSplit, Gradient, MomentFormat::kF32>::run(slice, scalars, fill);
    case MomentFormat::kBF16:
      return Loop<Form::kSplit, Gradient, MomentFormat::kBF16>::run(slice, scalars, fill);
    case MomentFormat::kInt8:
      return Loop<Form::kSplit, Gradient, MomentFormat::kInt8>::run(slice, scalars, fill);
  }
}

void run_slice(const UpdateSlice& slice, const AdamWScalars& scalars, internal::ArsFill fill) {
  if (slice.gradient_dtype == DType::kF32) {
    run_form<float>(slice, scalars, fill);
  } else {
    run_form<uint16_t>(slice, scalars, fill);
  }
}

#else

void run_slice(const UpdateSlice& slice, const AdamWScalars& scalars, internal::ArsFill) {
  internal::adamw_scalar(slice, scalars);
}

#endif

}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore {

HWY_EXPORT(run_slice);

namespace {

// CPUID takes microseconds in a virtual machine, so the result is cached.
int64_t supported_targets() {
  static const int64_t targets = hwy::SupportedTargets();
  return targets;
}

#if HWY_ARCH_X86
// Returns the mask of a target and all better ones, which have lower bits in Highway.
constexpr int64_t at_least(int64_t target) {
  return 2 * target - 1;
}
#endif

int64_t targets_of(SimdLevel level) {
  const int64_t best = supported_targets() & HWY_TARGETS;
#if HWY_ARCH_X86
  if (level == SimdLevel::kBaseline) return best & ~at_least(HWY_AVX2);
  if (level <= SimdLevel::kAvx2Vaes) return best & ~at_least(HWY_AVX3);
  if (level == SimdLevel::kAvx512) return best & ~at_least(HWY_AVX3_DL);
#endif
  static_cast<void>(level);
  return best;
}

}  // namespace

bool cpu_has(SimdLevel level) {
#if HWY_ARCH_X86
  const int64_t targets = supported_targets() & HWY_TARGETS;
  switch (level) {
    case SimdLevel::kBaseline:
      return true;
    case SimdLevel::kAvx2:
      return (targets & HWY_AVX2) != 0;
    case SimdLevel::kAvx2Vaes:
      return (targets & HWY_AVX2) != 0 && cpu_has_vaes();
    case SimdLevel::kAvx512:
      return (targets & HWY_AVX3) != 0;
    case SimdLevel::kAvx512Vaes:
      return (targets & at_least(HWY_AVX3_DL)) != 0;
  }
#endif
  return level == SimdLevel::kBaseline;
}

SimdLevel best_simd_level() {
  return *std::find_if(kSimdLevels.rbegin(), kSimdLevels.rend(), cpu_has);
}

namespace internal {
namespace {

ArsFill fill_of(SimdLevel level) {
#if HWY_ARCH_X86
  return level == SimdLevel::kAvx2Vaes ? fill_by_vaes : fill_by_aes;
#else
  return nullptr;
#endif
}

}  // namespace

void adamw_kernel(SimdLevel level, const UpdateSlice& slice, const AdamWScalars& scalars) {
  hwy::ChosenTarget chosen;
  chosen.Update(targets_of(level));
  HWY_DISPATCH_TABLE(run_slice)[chosen.GetIndex()](slice, scalars, fill_of(level));
}

}  // namespace internal
}  // namespace longshore
#endif
