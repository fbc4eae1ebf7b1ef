#include "kernels/gradient.h"

#include <algorithm>
#include <vector>

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gradient.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

using Doubles = hn::CappedTag<double, kGroup>;
using SomeFloats = hn::Rebind<float, Doubles>;

// Adds the squares of sixteen values to sixteen lanes. A square is exact in double, so a fused
// multiply-add gives the same bits as a product and a sum.
HWY_INLINE void add_squares(const float* values, double* lanes) {
  const auto step = static_cast<int64_t>(hn::Lanes(Doubles()));
  for (int64_t i = 0; i < kGroup; i += step) {
    const auto wide = hn::PromoteTo(Doubles(), hn::LoadU(SomeFloats(), values + i));
    hn::StoreU(hn::MulAdd(wide, wide, hn::LoadU(Doubles(), lanes + i)), Doubles(), lanes + i);
  }
}

// Adds each half of the lanes to the other until one is left.
HWY_INLINE double tree(double* lanes) {
  for (int64_t width = kSquareLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

HWY_INLINE double square_block(const float* values, int64_t count, Bf16* bf16) {
  double lanes[kSquareLanes] = {};
  for (int64_t i = 0; i < count; i += kGroup) {
    Group kept = load(values + i, count - i);
    if (bf16 != nullptr) {
      store(kept, bf16 + i, count - i);
      kept = rounded<Bf16>(kept);
    }
    float group[kGroup];
    store(kept, group);
    add_squares(group, lanes + i % kSquareLanes);
  }
  return tree(lanes);
}

void cast_and_square_blocks(std::span<const float> values, uint16_t* bf16, double* block_sums) {
  const auto elements = static_cast<int64_t>(values.size());
  auto* const narrow = reinterpret_cast<Bf16*>(bf16);
  for (int64_t begin = 0; begin < elements; begin += kSquareBlock) {
    *block_sums++ = square_block(values.data() + begin, std::min(kSquareBlock, elements - begin),
                                 narrow == nullptr ? nullptr : narrow + begin);
  }
}

double add_block_sums(std::span<const double> block_sums) {
  double lanes[kSquareLanes] = {};
  for (size_t i = 0; i < block_sums.size(); ++i) {
    lanes[i % static_cast<size_t>(kSquareLanes)] += block_sums[i];
  }
  return tree(lanes);
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(cast_and_square_blocks);
HWY_EXPORT(add_block_sums);

void cast_and_square_blocks(std::span<const float> values, uint16_t* bf16, double* block_sums) {
  HWY_DYNAMIC_DISPATCH(cast_and_square_blocks)(values, bf16, block_sums);
}
double add_block_sums(std::span<const double> block_sums) {
  return HWY_DYNAMIC_DISPATCH(add_block_sums)(block_sums);
}

double cast_and_square_cpu(std::span<const float> values, uint16_t* bf16) {
  const int64_t blocks = square_blocks(static_cast<int64_t>(values.size()));
  std::vector<double> block_sums(static_cast<size_t>(blocks));
  cast_and_square_blocks(values, bf16, block_sums.data());
  return add_block_sums(block_sums);
}

}  // namespace longshore::kernels
#endif
