#include "base/number_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace longshore {
namespace {

// Computes the value from the definition of fp16, without bit tricks.
double value_of_fp16(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Every finite fp16 number converts to fp32 exactly, with its sign.
TEST(NumberFormats, ReadsEveryFiniteFp16Exactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (((bits >> 10) & 0x1f) == 0x1f) continue;
    const float value = fp16_to_float(static_cast<uint16_t>(bits));
    ASSERT_EQ(static_cast<double>(value), value_of_fp16(static_cast<uint16_t>(bits))) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
  }
}

// Infinities and NaN of fp16 convert to those of fp32.
TEST(NumberFormats, ReadsFp16InfinitiesAndNan) {
  EXPECT_EQ(fp16_to_float(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(fp16_to_float(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(fp16_to_float(0x7e01)));
}

// Every fp16 number keeps its bits on the way to fp32 and back.
TEST(NumberFormats, EveryFp16SurvivesTheWayThroughFp32) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = fp16_to_float(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_fp16_nearest(value), half) << bits;
  }
  EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16_nearest(std::nanf("")))));
}

// Between any two fp16 neighbours the midpoint rounds to the even one, all else to the nearer one.
TEST(NumberFormats, RoundsToTheNearestFp16AndTiesToEven) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const auto middle = static_cast<float>((value_of_fp16(low) + value_of_fp16(high)) / 2);
    const uint16_t even = (low & 1) == 0 ? low : high;
    ASSERT_EQ(float_to_fp16_nearest(middle), even) << low;
    ASSERT_EQ(float_to_fp16_nearest(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(float_to_fp16_nearest(std::nextafter(middle, 1e9f)), high) << low;
    ASSERT_EQ(float_to_fp16_nearest(-middle), even | 0x8000) << low;
  }
}

// A value from half a step above the largest fp16 number on becomes infinity.
TEST(NumberFormats, OverflowsToInfinityFromHalfWayBeyondTheLargestFp16) {
  EXPECT_EQ(float_to_fp16_nearest(65519.99f), 0x7bff);
  EXPECT_EQ(float_to_fp16_nearest(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16_nearest(-1e30f), 0xfc00);
}

// The two halves of a split master join to the same fp32 bits.
TEST(NumberFormats, SplitMastersJoinToTheSameBits) {
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 65521) {
    const float master = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const float joined = join_master(master_high(master), master_low(master));
    ASSERT_EQ(std::bit_cast<uint32_t>(joined), bits);
  }
}

// fp32 rounds to the nearest bf16, and ties go to the even one.
TEST(NumberFormats, RoundsToTheNearestBf16AndTiesToEven) {
  EXPECT_EQ(float_to_bf16_nearest(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16_nearest(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(float_to_bf16_nearest(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bf16_nearest(std::nanf("")), 0x7fc0);
  EXPECT_EQ(bf16_to_float(0x3f80), 1.0f);
}

}  // namespace
}  // namespace longshore
