#include "offload/optimizer/stream_bound.h"

// Those that gain nothing here, and those whose vectors have no fixed size.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/stream_bound.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <array>
#include <span>

HWY_BEFORE_NAMESPACE();
namespace longshore::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Stream {
  std::byte* at = nullptr;
  size_t width = 0;  // bytes of an element
  enum class Kind : uint8_t { kRead, kReadWrite, kWrite } kind = Kind::kRead;
};

// Elements of one step of the loop, and how far ahead memory is asked for.
constexpr size_t kStepElements = 64;
constexpr size_t kAheadElements = 512;

// Unchanged, but the compiler cannot know: `zero` comes from outside.
HWY_INLINE void move_step(const Stream& stream, size_t begin,
                          hn::Vec<hn::ScalableTag<uint64_t>>& all,
                          hn::Vec<hn::ScalableTag<uint64_t>> zero) {
  const hn::ScalableTag<uint64_t> words;
  constexpr size_t kVectorBytes = hn::MaxLanes(words) * sizeof(uint64_t);
  const size_t bytes = kStepElements * stream.width;
  std::byte* at = stream.at + begin * stream.width;
  if (stream.kind != Stream::Kind::kWrite) {
    for (size_t line = 0; line < bytes; line += 64) {
      hwy::Prefetch(at + kAheadElements * stream.width + line);
    }
  }
  for (size_t i = 0; i < bytes; i += kVectorBytes) {
    auto* place = reinterpret_cast<uint64_t*>(at + i);
    if (stream.kind == Stream::Kind::kWrite) {
      hn::Stream(zero, words, place);
      continue;
    }
    const auto value = hn::LoadU(words, place);
    if (stream.kind == Stream::Kind::kRead) {
      all = hn::Xor(all, value);
    } else {
      hn::StoreU(hn::Xor(value, zero), words, place);
    }
  }
}

uint64_t move_all(std::span<const Stream> streams, size_t elements, uint64_t zero) {
  const hn::ScalableTag<uint64_t> words;
  auto all = hn::Zero(words);
  const auto zeros = hn::Set(words, zero);
  for (size_t i = 0; i + kStepElements <= elements; i += kStepElements) {
    for (const Stream& stream : streams) move_step(stream, i, all, zeros);
  }
  hwy::FlushStream();
  return hn::GetLane(all);
}

uint64_t move_slice(const UpdateSlice& slice, uint64_t zero) {
  std::array<Stream, 6> streams;
  size_t count = 0;
  const auto add = [&](const void* at, size_t width, Stream::Kind kind) {
    auto* bytes = static_cast<std::byte*>(const_cast<void*>(at));
    if (bytes != nullptr) streams[count++] = {bytes, width, kind};
  };
  const bool split = !slice.low.empty();
  const auto moment_width = static_cast<size_t>(width_of(slice.exp_avg.format));
  add(slice.gradient.data(), static_cast<size_t>(width_of(slice.gradient_dtype)),
      Stream::Kind::kRead);
  add(slice.master.data(), 4, Stream::Kind::kReadWrite);
  add(slice.high.data(), 2, split ? Stream::Kind::kReadWrite : Stream::Kind::kWrite);
  add(slice.low.data(), 2, Stream::Kind::kReadWrite);
  add(slice.exp_avg.values.data(), moment_width, Stream::Kind::kReadWrite);
  add(slice.exp_avg_sq.values.data(), moment_width, Stream::Kind::kReadWrite);
  return move_all(std::span(streams).first(count), slice.elements(), zero);
}

}  // namespace longshore::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore {

HWY_EXPORT(move_slice);

uint64_t move_streams(const UpdateSlice& slice) {
  static volatile uint64_t zero = 0;
  return HWY_DYNAMIC_DISPATCH(move_slice)(slice, zero);
}

}  // namespace longshore
#endif
