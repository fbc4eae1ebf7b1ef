#include "base/mxfp4.h"

#include <algorithm>
#include <cmath>

namespace longshore {
namespace {

constexpr int64_t kTile = 16;        // a cache line of fp32 values
constexpr int kLargestExponent = 2;  // of the numbers: that of 4 and 6

// Returns the code of the number nearest to a quotient.
uint8_t code_of(double quotient) {
  const double size = std::fabs(quotient);
  // Numbers are 0.5 apart below 2, 1 below 4 and 2 above. std::rint takes the even one of two.
  int code = 0;
  if (size < 2.0) {
    code = static_cast<int>(std::rint(size * 2.0));
  } else if (size < 4.0) {
    code = 2 + static_cast<int>(std::rint(size));
  } else {
    code = std::min(4 + static_cast<int>(std::rint(size / 2.0)), 7);
  }
  return static_cast<uint8_t>(std::signbit(quotient) ? code | 8 : code);
}

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

uint8_t encode_mxfp4_group(std::span<const float, Mxfp4Layout::kGroup> values,
                           std::span<uint8_t, Mxfp4Layout::kGroupBytes> codes) {
  float largest = 0.0F;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const int shared = largest > 0.0F ? std::ilogb(largest) - kLargestExponent : -127;
  const int exponent = std::max(shared, -127);
  const double inverse = std::ldexp(1.0, -exponent);  // so that the quotients are exact
  for (size_t i = 0; i < codes.size(); ++i) {
    const int first = code_of(double{values[2 * i]} * inverse);
    const int second = code_of(double{values[2 * i + 1]} * inverse);
    codes[i] = static_cast<uint8_t>(first | second << 4);
  }
  return static_cast<uint8_t>(exponent + 127);
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
