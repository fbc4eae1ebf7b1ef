#include "data/sources/row_source.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"
#include "base/texts.h"
#include "data/rows/row_block.h"
#include "tests/data/scratch_files.h"

namespace longshore {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
  JsonlReader reader(path);
  std::vector<std::string> lines;
  JsonlLine line;
  while (reader.next(line)) {
    EXPECT_EQ(line.number, static_cast<int64_t>(lines.size()) + 1);
    lines.push_back(line.too_long ? "too long" : std::string(line.text));
  }
  EXPECT_FALSE(reader.next(line));
  return lines;
}

using Lines = std::vector<std::string>;

// Byte order marks, CR LF, and a last line without line feed are accepted.
TEST(JsonlReader, AcceptsByteOrderMarksCarriageReturnsAndAMissingLastLineFeed) {
  const ScratchFiles files;
  EXPECT_EQ(lines_of(files.write("a", "\xEF\xBB\xBFone\r\ntwo\n\nfour")),
            (Lines{"one", "two", "", "four"}));
  EXPECT_EQ(lines_of(files.write("b", "one\n")), (Lines{"one"}));
  EXPECT_EQ(lines_of(files.write("c", "")), Lines{});
  EXPECT_EQ(lines_of(files.write("d", "\xEF\xBB\xBF")), Lines{});
  EXPECT_EQ(lines_of(files.write("e", "\n")), (Lines{""}));
}

// JsonlLine::ended says whether a line feed ends the line.
TEST(JsonlReader, TellsWhetherALineFeedEndsTheLine) {
  const ScratchFiles files;
  JsonlReader reader(files.write("a", "one\ntwo"));
  JsonlLine line;
  ASSERT_TRUE(reader.next(line));
  EXPECT_TRUE(line.ended);
  ASSERT_TRUE(reader.next(line));
  EXPECT_FALSE(line.ended);
}

// Lines that end before, at and after the borders of read chunks are read whole.
TEST(JsonlReader, ReadsLinesOfEveryLengthAcrossChunks) {
  const ScratchFiles files;
  Lines expected;
  std::string content;
  for (size_t bytes : {size_t{0}, size_t{5}, (size_t{1} << 20) - 8, size_t{1} << 20,
                       (size_t{1} << 20) + 1, size_t{3} << 20, size_t{1}}) {
    expected.push_back(std::string(bytes, static_cast<char>('a' + bytes % 7)));
    content += expected.back() + "\n";
  }
  EXPECT_EQ(lines_of(files.write("a", content)), expected);
}

// A line beyond the limit is skipped, and the lines after it are read.
TEST(JsonlReader, PassesOverALineThatIsTooLongAndGoesOn) {
  const ScratchFiles files;
  const auto limit = static_cast<size_t>(kMaxLineBytes);
  const std::string longest(limit, 'x');
  const std::string content = "a\n" + longest + "\n" + longest + "y\nb\n" + longest + longest;
  const Lines lines = lines_of(files.write("a", content));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "a");
  EXPECT_EQ(lines[1].size(), limit);
  EXPECT_EQ(lines[2], "too long");
  EXPECT_EQ(lines[3], "b");
  EXPECT_EQ(lines[4], "too long");
}

// UTF-16 files and missing files are refused.
TEST(JsonlReader, RefusesUtf16AndMissingFiles) {
  const ScratchFiles files;
  EXPECT_THROW(JsonlReader(files.write("a", std::string_view("\xFF\xFEo\0n\0", 6))), DataError);
  EXPECT_THROW(JsonlReader(files.path("missing")), DataError);
  EXPECT_THROW(JsonlReader(files.path("")), DataError);
}

// first_invalid_utf8() gives the offset of the first byte that is not UTF-8.
TEST(Utf8, FindsTheFirstByteThatIsNone) {
  EXPECT_EQ(first_invalid_utf8("plain"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xEF\xBF\xBF"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("ab\xFF"), 2u);
  EXPECT_EQ(first_invalid_utf8("a\xC3"), 1u);             // a sequence is cut off
  EXPECT_EQ(first_invalid_utf8("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(first_invalid_utf8("\xE0\x80\xAF"), 0u);      // overlong
  EXPECT_EQ(first_invalid_utf8("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(first_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(first_invalid_utf8("x\x80"), 1u);             // a continuation byte alone
}

// Goal: the rows that are tokenized at once are fewer where the tokenizer makes them longer.
TEST(JsonlReader, GivesBlocksThatAreShortWhereTokenizingMakesThemLong) {
  const ScratchFiles files;
  std::string rows;
  for (int row = 0; row < 600; ++row) rows += std::string(999, 'a') + "\n";
  JsonlReader reader(files.write("a", rows));
  EXPECT_EQ(read_block(reader, 1)->rows.size(), 263u);
  EXPECT_EQ(read_block(reader, 64)->rows.size(), 5u);
  EXPECT_EQ(read_block(reader, 4096)->rows.size(), 1u);
}

}  // namespace
}  // namespace longshore
