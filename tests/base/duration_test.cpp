#include "base/texts.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

// Goal: only numbers with a unit are read as durations.
TEST(Duration, ReadsNumbersWithAUnit) {
  EXPECT_EQ(parse_duration("500ms"), std::chrono::milliseconds(500));
  EXPECT_EQ(parse_duration("30s"), std::chrono::seconds(30));
  EXPECT_EQ(parse_duration("10m"), std::chrono::minutes(10));
  EXPECT_EQ(parse_duration("2h"), std::chrono::hours(2));
  for (const char* text : {"", "10", "m", "-1s", "1.5h", "10 m", "1d", "99999999h", "1sm"}) {
    EXPECT_EQ(parse_duration(text), std::nullopt) << text;
  }
}

// Goal: a written duration reads back as the same text.
TEST(Duration, WritesTheLargestUnit) {
  for (const char* text : {"0s", "1ms", "1500ms", "2s", "90s", "10m", "24h"}) {
    EXPECT_EQ(format_duration(*parse_duration(text)), text);
  }
}

// Counts are written in groups of three digits.
TEST(Count, IsWrittenInGroupsOfThreeDigits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(2431), "2 431");
  EXPECT_EQ(format_count(1234567), "1 234 567");
  EXPECT_EQ(format_count(-1234), "-1 234");
}

// Formatted text is what printf prints, of any length.
TEST(Formatted, GivesWhatPrintfPrints) {
  EXPECT_EQ(formatted("%s of %lld: %.2f %%", "step", 12LL, 0.125), "step of 12: 0.12 %");
  EXPECT_EQ(formatted("%016llx", 0x1fULL), "000000000000001f");
  EXPECT_EQ(formatted("%s", ""), "");
  const std::string long_text(5000, 'x');
  EXPECT_EQ(formatted("<%s>", long_text.c_str()), "<" + long_text + ">");
}

}  // namespace
}  // namespace longshore
