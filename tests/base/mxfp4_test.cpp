// Groups of MXFP4 as the OCP Microscaling specification packs them, against a reference that
// looks for the nearest number among all.
#include "base/mxfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace longshore {
namespace {

using Group = std::array<float, Mxfp4Layout::kGroup>;

struct Packed {
  int exponent = 0;
  std::array<int, Mxfp4Layout::kGroup> codes{};
  bool operator==(const Packed&) const = default;
};

Packed packed(const Group& values) {
  std::array<uint8_t, Mxfp4Layout::kGroupBytes> bytes{};
  Packed result{.exponent = encode_mxfp4_group(values, bytes) - 127};
  for (size_t i = 0; i < values.size(); ++i) {
    result.codes[i] = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
  }
  return result;
}

// The code whose number is nearest to a quotient, of two the even one; the largest beyond it.
int nearest_code(double quotient) {
  constexpr std::array<double, 8> kNumbers = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double to_best = std::fabs(std::fabs(quotient) - kNumbers[static_cast<size_t>(best)]);
    const double to_code = std::fabs(std::fabs(quotient) - kNumbers[static_cast<size_t>(code)]);
    if (to_code < to_best || (to_code == to_best && code % 2 == 0)) best = code;
  }
  return std::signbit(quotient) ? best + 8 : best;
}

// The exponent of the largest magnitude, found by doubling and halving, less that of 4.
int shared_exponent(const Group& values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max(largest, std::fabs(double{value}));
  if (largest == 0.0) return -127;
  int exponent = 0;
  for (; largest >= 2.0; largest /= 2.0) ++exponent;
  for (; largest < 1.0; largest *= 2.0) --exponent;
  return std::max(exponent - 2, -127);
}

Packed reference(const Group& values) {
  Packed result{.exponent = shared_exponent(values)};
  for (size_t i = 0; i < values.size(); ++i) {
    result.codes[i] = nearest_code(double{values[i]} / std::pow(2.0, result.exponent));
  }
  return result;
}

// Goal: codes and exponents are those of the reference, over all sizes of fp32, with quotients in
// the middle of two numbers, beyond the largest one, and of both signs.
TEST(Mxfp4Group, IsPackedAsTheSpecificationSays) {
  std::mt19937 random(5);
  for (int round = 0; round < 4000; ++round) {
    Group values{};
    for (float& value : values) {
      uint32_t bits = static_cast<uint32_t>(random());
      const uint32_t exponent = 1 + (static_cast<uint32_t>(round) * 7 + bits % 6) % 253;
      // Few bits of mantissa make ties frequent.
      bits = (bits & 0x80000000U) | exponent << 23 | (bits & 0x00780000U);
      std::memcpy(&value, &bits, sizeof(value));
    }
    ASSERT_EQ(packed(values), reference(values)) << round;
  }
}

// Goal: the ends: zeros, the largest finite number, the smallest one, and a single value that
// leaves the others no code but zero.
TEST(Mxfp4Group, HoldsTheEndsOfTheRange) {
  const Group zeros{};
  EXPECT_EQ(packed(zeros), (Packed{.exponent = -127}));
  Group values{};
  for (const float value : {std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min(), -7.99F, 1.0F}) {
    values[3] = value;
    values[4] = value / 64.0F;
    EXPECT_EQ(packed(values), reference(values)) << value;
  }
  values[3] = -7.99F;
  values[4] = 0.0F;
  EXPECT_EQ(packed(values).codes[3], 15) << "beyond 6 the largest number is taken";
  EXPECT_EQ(packed(values).exponent, 0);
}

// Goal: packing what a group stands for gives the same values, whatever its codes; and the same
// bytes where its largest number is 4 or 6, since the rule then finds the same exponent.
TEST(Mxfp4Group, GivesTheValuesThatItWasUnpackedTo) {
  std::mt19937 random(9);
  for (int round = 0; round < 2000; ++round) {
    std::array<uint8_t, Mxfp4Layout::kGroupBytes> codes{}, again{};
    for (uint8_t& pair : codes) pair = static_cast<uint8_t>(random());
    if (round % 2 == 0) codes[5] = 0x76;
    const auto exponent = static_cast<uint8_t>(3 + random() % 250);
    Group values{}, unpacked{};
    const auto decode = [](const auto& blocks, const uint8_t& scale, Group& out) {
      decode_mxfp4(Mxfp4Layout(Mxfp4Layout::kGroup, 1),
                   {.first = 0, .count = 1, .blocks = blocks.data(), .scales = &scale}, 0, out);
    };
    decode(codes, exponent, values);
    const uint8_t found = encode_mxfp4_group(values, again);
    decode(again, found, unpacked);
    EXPECT_EQ(unpacked, values);
    if (round % 2 == 0) {
      EXPECT_EQ(found, exponent);
      EXPECT_EQ(again, codes);
    }
  }
}

}  // namespace
}  // namespace longshore
