#include "base/log.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    set_log_level(LogLevel::kInfo);
    set_log_colour(LogColour::kAuto);
  }
};

// Every level but info has a prefix.
TEST_F(LogTest, PrefixesEveryLevelButInfo) {
  set_log_colour(LogColour::kNever);
  set_log_level(LogLevel::kDebug);
  ::testing::internal::CaptureStderr();
  log_error("a");
  log_warning("b");
  log_info("c");
  log_debug("d");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "error: a\nwarning: b\nc\ndebug: d\n");
}

// Messages above the log level are dropped.
TEST_F(LogTest, DropsWhatIsAboveTheLevel) {
  set_log_colour(LogColour::kNever);
  set_log_level(LogLevel::kError);
  ::testing::internal::CaptureStderr();
  log_warning("b");
  log_error("a");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "error: a\n");
}

// Only the prefix of a message is coloured.
TEST_F(LogTest, ColoursOnlyThePrefix) {
  set_log_colour(LogColour::kAlways);
  ::testing::internal::CaptureStderr();
  log_error("a");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "\x1b[31merror:\x1b[0m a\n");
}

// Names of levels are read in lower case only.
TEST_F(LogTest, ReadsLevelNames) {
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("WARNING"), std::nullopt);
  EXPECT_EQ(name_of(LogLevel::kDebug), "debug");
}

}  // namespace
}  // namespace longshore
