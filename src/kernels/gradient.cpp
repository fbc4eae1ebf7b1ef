#include "kernels/gradient.h"

#include <algorithm>
#include <array>

#include "base/number_formats.h"

namespace longshore::kernels {
namespace {

using Lanes = std::array<double, static_cast<size_t>(kSquareLanes)>;

double tree(Lanes& lanes) {
  for (size_t width = lanes.size() / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace

double cast_and_square_cpu(std::span<const float> values, uint16_t* bf16) {
  const auto elements = static_cast<int64_t>(values.size());
  Lanes of_blocks{};
  for (int64_t block = 0; block < square_blocks(elements); ++block) {
    Lanes lanes{};
    const int64_t begin = block * kSquareBlock;
    for (int64_t i = begin; i < std::min(begin + kSquareBlock, elements); ++i) {
      float kept = values[static_cast<size_t>(i)];
      if (bf16 != nullptr) {
        bf16[i] = float_to_bf16_nearest(kept);
        kept = bf16_to_float(bf16[i]);
      }
      lanes[static_cast<size_t>(i % kSquareLanes)] +=
          static_cast<double>(kept) * static_cast<double>(kept);
    }
    of_blocks[static_cast<size_t>(block % kSquareLanes)] += tree(lanes);
  }
  return tree(of_blocks);
}

}  // namespace longshore::kernels
