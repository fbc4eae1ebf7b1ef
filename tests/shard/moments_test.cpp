// Narrow moments: stochastic rounding is right on average, and codes stay within their bounds.
#include "shard/moments.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

constexpr size_t kDraws = size_t{1} << 20;

// Returns the bits of the updates' own generator, for elements of 256 updates.
constexpr RoundingStream stream_of(size_t draw) {
  return {{7, 8}, 0, draw / 4096};
}
std::vector<uint32_t> halves_of(Moment which) {
  std::vector<uint32_t> halves;
  for (size_t i = 0; i < kDraws; ++i) halves.push_back(random16(stream_of(i), which, i % 4096));
  return halves;
}
std::vector<uint32_t> bits19_of(Moment which) {
  std::vector<uint32_t> bits;
  for (size_t i = 0; i < kDraws; ++i) {
    bits.push_back(random19(stream_of(i), which, i % 4096));
  }
  return bits;
}

// Goal: stochastic rounding to bf16 is unbiased. Of 2^20 samples, rounding up with probability f
// has a standard deviation of at most 512. A probability off by 0.005 is 10 of them away, beyond
// the limit of 5 but for one run in 10^6; a right one stays inside but for one in 10^6.
TEST(StochasticRounding, OfBf16RoundsUpAsOftenAsTheValueIsFar) {
  const std::vector<uint32_t> random[2] = {halves_of(Moment::kFirst), halves_of(Moment::kSecond)};
  for (const uint32_t fraction : {0x0001u, 0x1000u, 0x4000u, 0x8000u, 0xa123u, 0xffffu}) {
    for (const uint32_t top : {0x3f80u, 0xbf80u, 0x0001u, 0x4049u}) {
      const float value = std::bit_cast<float>(top << 16 | fraction);
      const double f = fraction / 65536.0;
      const double deviation = std::sqrt(kDraws * f * (1.0 - f));
      for (const std::vector<uint32_t>& halves : random) {
        int64_t ups = 0;
        for (const uint32_t half : halves) ups += float_to_bf16_stochastic(value, half) - top;
        EXPECT_NEAR(static_cast<double>(ups), kDraws * f, 5.0 * deviation) << fraction;
      }
    }
  }
}

// Stochastic rounding keeps exact bf16 values and never reaches infinity.
TEST(StochasticRounding, OfBf16KeepsWhatFitsAndNeverReachesInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const uint32_t random : {0u, 0x8000u, 0xffffu}) {
    for (uint32_t bits = 0; bits < 0x7f80u; bits += 7) {
      ASSERT_EQ(float_to_bf16_stochastic(bf16_to_float(static_cast<uint16_t>(bits)), random), bits);
    }
    EXPECT_EQ(float_to_bf16_stochastic(std::numeric_limits<float>::max(), random), 0x7f7f);
    EXPECT_EQ(float_to_bf16_stochastic(infinity, random), 0x7f80);
    EXPECT_EQ(float_to_bf16_stochastic(-infinity, random), 0xff80);
    const uint16_t nan = float_to_bf16_stochastic(std::nanf(""), random);
    EXPECT_TRUE(std::isnan(bf16_to_float(nan)));
  }
}

// Goal: stochastic rounding to 8-bit codes is unbiased over their whole range. A step is the
// distance of two codes; the mean of 2^20 samples has a standard deviation of at most half a step /
// 1024.
TEST(StochasticRounding, Of8BitCodesIsRightOnAverage) {
  constexpr float kUnit = 0.37f;
  const std::vector<uint32_t> of_first = bits19_of(Moment::kFirst);
  const std::vector<uint32_t> of_second = bits19_of(Moment::kSecond);
  for (const float x : {1e-6f, 3e-4f, 0.0017f, 0.011f, 0.09f, 0.3f, 0.77f, 1.2f, 1.9f}) {
    double first = 0.0;
    double second = 0.0;
    for (size_t draw = 0; draw < kDraws; ++draw) {
      first +=
          decode_first_moment(encode_first_moment(-x * kUnit, 1 / kUnit, of_first[draw]), kUnit);
      second +=
          decode_second_moment(encode_second_moment(x * kUnit, 1 / kUnit, of_second[draw]), kUnit);
    }
    const auto limit = [&](float offset) {
      const double step = (x + offset) / 16.0 * kUnit;
      return step * (5.0 * 0.5 / 1024 + 0x1p-19);
    };
    EXPECT_NEAR(first / kDraws, -x * kUnit, limit(0x1p-7f)) << x;
    if (x < 1e-5f) continue;  // below the second moment's least code
    EXPECT_NEAR(second / kDraws, x * kUnit, limit(0x1p-15f)) << x;
  }
}

// Goal: an element's two moments round independently, although neighbours share random words. Of
// 2^20 samples both exceed a half in a quarter, with a standard deviation of 443.
TEST(StochasticRounding, OfAnElementsTwoMomentsIsIndependent) {
  for (const auto& [first, second, half] :
       {std::tuple{halves_of(Moment::kFirst), halves_of(Moment::kSecond), 0x8000u},
        std::tuple{bits19_of(Moment::kFirst), bits19_of(Moment::kSecond), 0x40000u}}) {
    int64_t both = 0;
    for (size_t i = 0; i < kDraws; ++i) both += first[i] >= half && second[i] >= half ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(both), kDraws / 4.0, 5.0 * 443.0);
  }
}

std::vector<float> block_of(uint32_t seed, int lowest_exponent) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(lowest_exponent, 0);
  std::vector<float> values;
  for (int i = 0; i < kMomentBlockElements; ++i) {
    values.push_back(std::ldexp(normal(random), exponent(random)));
  }
  values[seed % values.size()] = 0.0f;
  return values;
}

float largest_of(const std::vector<float>& values) {
  float largest = 0.0f;
  for (float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Goal: a code is off by less than a step: a sixteenth of the value, or of the linear part's end.
TEST(EightBitMoments, AreWithinAStepForAnyRandomBitsAndScale) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const float scale = std::ldexp(1.0f, static_cast<int>(seed) - 90);
    std::vector<float> values = block_of(seed, seed % 2 == 0 ? -2 : -25);
    for (float& value : values) value *= scale;
    const float largest = largest_of(values);
    const float m_unit = moment_unit(kFirstMomentCurve, largest);
    const float v_unit = moment_unit(kSecondMomentCurve, largest);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t random = random19({{7, 8}, 0, seed}, Moment::kFirst, i);
      const float m = values[i];
      const float v = std::fabs(m);
      const float m_back = decode_first_moment(encode_first_moment(m, 1 / m_unit, random), m_unit);
      const float v_back =
          decode_second_moment(encode_second_moment(v, 1 / v_unit, random), v_unit);
      ASSERT_NEAR(m_back, m, (v + 0x1p-7f * m_unit) / 16.0f * 1.0001f) << seed;
      ASSERT_NEAR(v_back, v, (v + 0x1p-15f * v_unit) / 16.0f * 1.0001f) << seed;
      ASSERT_EQ(std::signbit(m_back), std::signbit(m));
      ASSERT_GT(v_back, 0.0f) << "nothing is divided by the root of a lost second moment";
    }
  }
}

// 8-bit moments stay finite for infinite, huge and vanishing values.
TEST(EightBitMoments, StayFiniteWithInfiniteHugeAndVanishingValues) {
  for (const float largest :
       {0.0f, 1e-45f, 1e-38f, 3e38f, std::numeric_limits<float>::infinity()}) {
    for (const MomentCurve& curve : {kFirstMomentCurve, kSecondMomentCurve}) {
      const float unit = moment_unit(curve, largest);
      ASSERT_TRUE(std::isnormal(unit) && std::isnormal(1.0f / unit)) << largest;
      ASSERT_LE(encode_magnitude(curve, largest, 1.0f / unit, 0x7ffffu), curve.last_code);
    }
  }
}

// A span of codes reads back the exact values of its codes.
TEST(MomentSpan, ReadsBackExactlyWhatItsCodesMean) {
  std::vector<float> values = block_of(3, -12);
  values.resize(300, 0.25f);
  std::vector<std::byte> codes(values.size());
  std::vector<float> units(3);
  const MomentSpan span = {MomentFormat::kInt8, codes, units};
  write_moments(Moment::kFirst, span, 0, values);
  std::vector<float> once(values.size());
  read_moments(Moment::kFirst, span, 0, once);
  for (size_t i = 0; i < once.size(); ++i) {
    const auto code = static_cast<uint8_t>(codes[i]);
    ASSERT_EQ(once[i], decode_first_moment(code, units[i / 128]));
    ASSERT_NEAR(once[i], values[i], (std::fabs(values[i]) + 0x1p-7f * units[i / 128]) / 32 * 1.01f);
  }
  // A range may begin anywhere; each element uses the unit of its own block.
  for (const size_t begin : {100u, 128u, 256u, 290u}) {
    std::vector<float> tail(values.size() - begin);
    read_moments(Moment::kFirst, span, static_cast<int64_t>(begin), tail);
    EXPECT_EQ(tail, std::vector<float>(once.begin() + static_cast<int64_t>(begin), once.end()));
  }
  EXPECT_THROW(write_moments(Moment::kFirst, span, 64, std::span(values).first(64)), CheckFailure);
  EXPECT_THROW(span.part(64, 10), CheckFailure) << "inside a block";
  EXPECT_THROW(span.part(256, 45), CheckFailure) << "beyond the end";
  EXPECT_EQ(span.part(128, 172).units.size(), 2u);
}

}  // namespace
}  // namespace longshore
