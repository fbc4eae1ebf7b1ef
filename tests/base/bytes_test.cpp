#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>

namespace longshore {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Checked sums and products refuse negative operands and results beyond 64 bits.
TEST(Bytes, CheckedArithmeticRefusesWhatDoesNotFitAndNegatives) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_add(-1, 1), std::nullopt);
  EXPECT_EQ(checked_multiply(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(checked_multiply(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(checked_multiply(0, kMax), 0);
  EXPECT_EQ(checked_multiply(-1, -1), std::nullopt);
}

// Sizes are written with one decimal and the largest binary unit, from KiB on.
TEST(Bytes, FormatsWithOneDecimalFromKibibytesOn) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(24 * kGiB), "24.0 GiB");
  EXPECT_EQ(format_bytes(kMiB - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(-2 * kMiB), "-2.0 MiB");
  EXPECT_EQ(format_bytes(kMax), "8192.0 PiB");
}

// Sizes with binary (GiB) and decimal (GB) units are read exactly.
TEST(Bytes, ParsesBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("24GiB"), 24 * kGiB);
  EXPECT_EQ(parse_bytes("24GB"), 24'000'000'000);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("100B"), 100);
  EXPECT_EQ(parse_bytes("512MiB"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("2kB"), 2000);
  EXPECT_EQ(parse_bytes("2KB"), 2000);
}

// A size without unit, with a sign, with an unknown unit or beyond 64 bits is refused.
TEST(Bytes, RefusesBareNumbersSignsUnknownUnitsAndOverflow) {
  for (const char* text : {"", "24", "GiB", "-1GiB", "+1GiB", "1.GiB", ".5GiB", "1.2.3GiB", "1e3B",
                           "24gib", "24G", "24 GiB ", " 24GiB", "24  GiB", "9223372036854775808B",
                           "8388608TiB", "99999999999999999999999GiB", "9999999.5TiB", "0x10B"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_bytes("9223372036854775807B"), kMax);
}

// align_up() gives the next multiple of the alignment.
TEST(Bytes, AlignsUp) {
  EXPECT_EQ(align_up(0, 256), 0);
  EXPECT_EQ(align_up(1, 256), 256);
  EXPECT_EQ(align_up(256, 256), 256);
}

// Goal: two sizes that differ are never written as the same text ("6.0 MiB needed, 6.0 MiB given").
TEST(Bytes, TwoSizesThatDifferAreWrittenApart) {
  using Texts = std::pair<std::string, std::string>;
  EXPECT_EQ(format_bytes_apart(6 * kMiB, 4 * kMiB), (Texts{"6.0 MiB", "4.0 MiB"}));
  EXPECT_EQ(format_bytes_apart(6 * kMiB, 6 * kMiB), (Texts{"6.0 MiB", "6.0 MiB"}));
  EXPECT_EQ(format_bytes_apart(6 * kMiB + 12 * kKiB, 6 * kMiB), (Texts{"6.01 MiB", "6.00 MiB"}));
  EXPECT_EQ(format_bytes_apart(6 * kMiB + 3 * kKiB, 6 * kMiB), (Texts{"6.003 MiB", "6.000 MiB"}));
  EXPECT_EQ(format_bytes_apart(6 * kGiB + 1, 6 * kGiB), (Texts{"6442450945 B", "6442450944 B"}));
}

}  // namespace
}  // namespace longshore
