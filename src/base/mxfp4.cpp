#include "base/mxfp4.h"

#include <algorithm>
#include <cmath>

namespace longshore {
namespace {

constexpr int64_t kTile = 16;  // a cache line of fp32 values

}  // namespace

const std::array<float, 256>& mxfp4_powers() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> powers{};
    for (size_t i = 0; i < powers.size(); ++i) {
      powers[i] = std::ldexp(1.0F, static_cast<int>(i) - 127);
    }
    return powers;
  }();
  return table;
}

// It works in tiles of outputs, so that input and output both stay in the L1 cache.
void decode_mxfp4(const Mxfp4Layout& layout, const Mxfp4Outputs& outputs, int64_t begin,
                  std::span<float> out) {
  const std::array<float, 256>& powers = mxfp4_powers();
  const int64_t all = layout.outputs(), end = begin + static_cast<int64_t>(out.size());
  const int64_t behind = outputs.first + outputs.count;
  for (int64_t tile = outputs.first; tile < behind; tile += kTile) {
    const int64_t last = std::min(tile + kTile, behind);
    for (int64_t input = begin / all; input * all < end; ++input) {
      const int64_t from = std::max(tile, begin - input * all);
      const int64_t to = std::min(last, end - input * all);
      for (int64_t output = from; output < to; ++output) {
        const int64_t at = (output - outputs.first) * layout.groups() + input / Mxfp4Layout::kGroup;
        const uint8_t pair =
            outputs.blocks[at * Mxfp4Layout::kGroupBytes + input % Mxfp4Layout::kGroup / 2];
        const int code = input % 2 == 0 ? pair & 15 : pair >> 4;
        out[static_cast<size_t>(input * all + output - begin)] =
            kMxfp4Numbers[static_cast<size_t>(code)] * powers[outputs.scales[at]];
      }
    }
  }
}

}  // namespace longshore
