// Failures that are learnt late reach exactly the points behind them.
#include "device/failure_clock.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace longshore {
namespace {

std::exception_ptr failure(const char* text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

TEST(FailureClock, FailsWhatIsBehindTheFailureAndNothingInFrontOfIt) {
  const auto log = std::make_shared<FailureLog>();
  FailureClock before, at;
  before.advance(log, 3);
  at.advance(log, 4);
  log->record(4, failure("work 4"));
  EXPECT_EQ(text_of(before.failure()), "");
  EXPECT_EQ(text_of(at.failure()), "work 4");
}

// Of two failures the earlier work's counts, whichever is told first.
TEST(FailureClock, KeepsTheFailureOfTheEarliestWork) {
  FailureLog log;
  log.record(7, failure("work 7"));
  log.record(5, failure("work 5"));
  log.record(6, failure("work 6"));
  EXPECT_EQ(text_of(log.before(9)), "work 5");
  EXPECT_EQ(text_of(log.before(4)), "");
}

TEST(FailureClock, CarriesDependenciesFromStreamToStream) {
  const auto first = std::make_shared<FailureLog>();
  const auto second = std::make_shared<FailureLog>();
  FailureClock a, b;
  a.advance(first, 2);
  b.advance(second, 1);
  b.merge(a);
  b.advance(first, 1);  // behind less than it already is: changes nothing
  EXPECT_EQ(b.streams(), 2u);
  first->record(2, failure("first's work 2"));
  EXPECT_EQ(text_of(b.failure()), "first's work 2");
}

}  // namespace
}  // namespace longshore
