#include "base/texts.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace longshore {
namespace {

// Control characters and direction overrides are escaped; other Unicode text stays.
TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("plain, Grüße, 日本, 😀"), "plain, Grüße, 日本, 😀");
  EXPECT_EQ(printable("\x1b[2J\n\t\r\x7f"), "\\x1b[2J\\x0a\\x09\\x0d\\x7f");
  // A C1 control in UTF-8 (CSI), a right-to-left override, a line separator.
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");
  EXPECT_EQ(printable("\xe2\x80\xa8"), "\\xe2\\x80\\xa8");
}

// Bytes that are not UTF-8 are escaped.
TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\xff"
                      "b\xc3"),
            "a\\xffb\\xc3");
}

// A long name is cut between characters, never inside one.
TEST(Printable, EndsLongNamesBetweenCharacters) {
  EXPECT_EQ(printable(std::string(100, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(printable("ää", 1), "ä...");
  EXPECT_EQ(printable("ää", 4), "ää");
}

// Texts of several lines keep line breaks and tabs; other control characters are escaped.
TEST(Printable, LinesKeepBreaksAndTabs) {
  EXPECT_EQ(printable_lines("a\n\tb\x1b]0;x\x07"), "a\n\tb\\x1b]0;x\\x07");
}

// Goal: no control character of a message or result reaches the terminal.
TEST(Printable, MessagesAndResultsComeThroughIt) {
  testing::internal::CaptureStderr();
  log_info("tensor 'a\x1b[31mb'");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tensor 'a\\x1b[31mb'\n");
  testing::internal::CaptureStdout();
  print_out("%s: %d\n", "a\x1b[31mb", 3);
  flush_output();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "a\\x1b[31mb: 3\n");
}

// Long lines are broken at spaces, and commands that are indented stay whole.
TEST(Wrapped, BreaksLongLinesBetweenWords) {
  EXPECT_EQ(wrapped_lines("one two three\n", 0), "one two three\n");
  EXPECT_EQ(wrapped_lines("one two three\n", 13), "one two three\n");
  EXPECT_EQ(wrapped_lines("one two three four five", 9), "one two\n  three\n  four\n  five");
  EXPECT_EQ(wrapped_lines("one\n\na-word-longer-than-that and", 9),
            "one\n\na-word-longer-than-that\n  and");
  EXPECT_EQ(wrapped_lines("  device: slots 1 B, units 2 B", 20),
            "  device: slots 1 B,\n    units 2 B");
  const std::string command = "  longshore export run.toml --to models/tuned";
  EXPECT_EQ(wrapped_lines(command, 20), command);
  EXPECT_EQ(wrapped_lines("ä ö ü é", 7), "ä ö ü é") << "characters are counted, not bytes";
}

}  // namespace
}  // namespace longshore
