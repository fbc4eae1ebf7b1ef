#include "base/errors.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace longshore {
namespace {

// The text of a ConfigError is the lines of all its problems.
TEST(Errors, AConfigErrorHoldsAllProblemsAndItsTextIsTheirLines) {
  const ConfigError error(std::vector<std::string>{"a.toml:1:1: x", "a.toml:2:1: y"});
  EXPECT_EQ(error.problems().size(), 2u);
  EXPECT_STREQ(error.what(), "a.toml:1:1: x\na.toml:2:1: y");
  EXPECT_EQ(error.exit_code(), ExitCode::kConfig);
}

// The text of an IoError names the operation, the path and the system's reason.
TEST(Errors, AnIoErrorNamesOperationPathAndReason) {
  EXPECT_STREQ(IoError("fsync", "/x", ENOSPC).what(), "fsync /x: No space left on device");
}

// The text of a failed check names the condition and the values given to it.
TEST(Errors, AFailedCheckNamesPlaceConditionAndValues) {
  const int slots = 3;
  try {
    LONGSHORE_CHECK(slots == 2) << "slots = " << slots;
    FAIL();
  } catch (const CheckFailure& failure) {
    const std::string text = failure.what();
    EXPECT_NE(text.find("check failed: slots == 2 slots = 3"), std::string::npos) << text;
    EXPECT_EQ(failure.exit_code(), ExitCode::kFailure);
  }
}

// The values of a check that holds are not evaluated.
TEST(Errors, ACheckThatHoldsEvaluatesNoValues) {
  int evaluated = 0;
  LONGSHORE_CHECK(true) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

}  // namespace
}  // namespace longshore
