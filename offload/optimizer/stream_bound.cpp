#include "offload/optimizer/stream_bound.h"

#include "base/cpu_targets.h"
#include "offload/optimizer/adamw.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/stream_bound.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Longs = hn::ScalableTag<uint64_t>;
using LongVector = hn::Vec<Longs>;
constexpr size_t kVectorBytes = hn::MaxLanes(Longs()) * sizeof(uint64_t);

enum class Kind : uint8_t { kRead, kReadWrite, kWrite };

// A stream of kWidth bytes per element.
template <size_t kWidth, Kind kKind>
struct Stream {
  std::byte* at;

  // `zero` is an argument, so that the compiler cannot see that no byte changes.
  template <size_t kElements, size_t kAheadElements>
  HWY_INLINE void move(size_t begin, LongVector& all, LongVector zero) const {
    constexpr size_t kBytes = kElements * kWidth;
    std::byte* from = at + begin * kWidth;
    if constexpr (kKind != Kind::kWrite && kAheadElements > 0) {
      for (size_t line = 0; line < kBytes; line += 64) {
        hwy::Prefetch(from + kAheadElements * kWidth + line);
      }
    }
    for (size_t i = 0; i < kBytes; i += kVectorBytes) {
      auto* place = reinterpret_cast<uint64_t*>(from + i);
      if constexpr (kKind == Kind::kWrite) {
        hn::Stream(zero, Longs(), place);
      } else if constexpr (kKind == Kind::kRead) {
        all = hn::Xor(all, hn::LoadU(Longs(), place));
      } else {
        hn::StoreU(hn::Xor(hn::LoadU(Longs(), place), zero), Longs(), place);
      }
    }
  }
};

template <size_t kElements, size_t kAheadElements, typename... All>
HWY_INLINE uint64_t move_all(size_t elements, uint64_t zero, const All&... streams) {
  LongVector all = hn::Zero(Longs());
  const LongVector zeros = hn::Set(Longs(), zero);
  for (size_t i = 0; i + kElements <= elements; i += kElements) {
    (streams.template move<kElements, kAheadElements>(i, all, zeros), ...);
  }
  hwy::FlushStream();
  return hn::GetLane(all);
}

template <typename... All>
uint64_t move_by(MoveLoop loop, size_t elements, uint64_t zero, const All&... streams) {
  switch (loop) {
    case MoveLoop::kShort:
      return move_all<64, 512>(elements, zero, streams...);
    case MoveLoop::kLong:
      return move_all<256, 1024>(elements, zero, streams...);
    case MoveLoop::kPlain:
      return move_all<64, 0>(elements, zero, streams...);
  }
  return 0;
}

template <size_t kGradient, size_t kMoment>
uint64_t move_form(const UpdateSlice& slice, MoveLoop loop, uint64_t zero) {
  const auto bytes = [](auto span) {
    return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(span.data()));
  };
  const size_t count = slice.elements();
  const Stream<kGradient, Kind::kRead> gradient{bytes(slice.gradient)};
  const Stream<kMoment, Kind::kReadWrite> m{bytes(exp_avg(slice).values)};
  const Stream<kMoment, Kind::kReadWrite> v{bytes(exp_avg_sq(slice).values)};
  if (!slice.low.empty()) {
    const Stream<2, Kind::kReadWrite> high{bytes(slice.high)};
    const Stream<2, Kind::kReadWrite> low{bytes(slice.low)};
    return move_by(loop, count, zero, gradient, high, low, m, v);
  }
  const Stream<4, Kind::kReadWrite> master{bytes(slice.master)};
  if (slice.high.empty()) return move_by(loop, count, zero, gradient, master, m, v);
  const Stream<2, Kind::kWrite> parameter{bytes(slice.high)};
  return move_by(loop, count, zero, gradient, master, m, v, parameter);
}

template <size_t kGradient>
uint64_t move_moments(const UpdateSlice& slice, MoveLoop loop, uint64_t zero) {
  switch (width_of(exp_avg(slice).format)) {
    case 4:
      return move_form<kGradient, 4>(slice, loop, zero);
    case 2:
      return move_form<kGradient, 2>(slice, loop, zero);
    case 1:
      return move_form<kGradient, 1>(slice, loop, zero);
  }
  return 0;
}

uint64_t move_slice(const UpdateSlice& slice, MoveLoop loop, uint64_t zero) {
  if (slice.gradient_dtype == DType::kF32) return move_moments<4>(slice, loop, zero);
  return move_moments<2>(slice, loop, zero);
}

}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore {

HWY_EXPORT(move_slice);

uint64_t move_streams(const UpdateSlice& slice, MoveLoop loop) {
  static volatile uint64_t zero = 0;
  return HWY_DYNAMIC_DISPATCH(move_slice)(slice, loop, zero);
}

}  // namespace longshore
#endif
