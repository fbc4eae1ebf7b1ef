#include "trainer/use/evaluator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

// The tracker counts evaluations since the lowest loss.
TEST(EvalTracker, CountsEvaluationsSinceTheLowestLoss) {
  EvalTracker tracker;
  EXPECT_TRUE(tracker.record(2.0));
  EXPECT_FALSE(tracker.record(2.0)) << "not lower";
  EXPECT_FALSE(tracker.record(3.0));
  EXPECT_EQ(tracker.without_gain(), 2);
  EXPECT_TRUE(tracker.record(1.5));
  EXPECT_EQ(tracker.without_gain(), 0);
  EXPECT_EQ(tracker.best_loss(), 1.5);
}

// A loss that is not finite is never the best.
TEST(EvalTracker, NeverTakesALossThatIsNotFiniteForTheBest) {
  EvalTracker tracker;
  EXPECT_FALSE(tracker.record(std::nan("")));
  EXPECT_FALSE(tracker.record(-INFINITY));
  EXPECT_EQ(tracker.without_gain(), 2);
  EXPECT_TRUE(tracker.record(4.0));
}

// Other ranks get the same state, bit for bit.
TEST(EvalTracker, IsTheSameOnOtherRanksBitForBit) {
  EvalTracker tracker;
  tracker.record(0.1 + 0.2);
  tracker.record(1.0);
  const EvalTracker other = EvalTracker::of_text(tracker.text());
  EXPECT_EQ(other.best_loss(), tracker.best_loss());
  EXPECT_EQ(other.without_gain(), 1);
  EXPECT_EQ(EvalTracker::of_text(EvalTracker().text()).best_loss(), INFINITY);
}

// The state is read from the metrics of a run.
TEST(EvalTracker, ReadsItsStateFromTheMetricsOfARun) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("metrics.jsonl");
  EXPECT_EQ(EvalTracker::of_metrics(path).without_gain(), 0) << "no file yet";
  std::ofstream(path) << "{\"kind\":\"step\",\"step\":1,\"loss\":0.5}\n"
                         "{\"kind\":\"eval\",\"step\":1,\"loss\":3.0}\n"
                         "{\"kind\":\"eval\",\"step\":2,\"loss\":2.0}\n"
                         "{\"kind\":\"eval\",\"step\":3,\"loss\":null}\n"
                         "{\"kind\":\"eval\",\"step\":4,\"loss\":2.5}\n"
                         "{\"kind\":\"eval\",\"step\":5,\"lo";
  const EvalTracker tracker = EvalTracker::of_metrics(path);
  EXPECT_EQ(tracker.best_loss(), 2.0);
  EXPECT_EQ(tracker.without_gain(), 2);
}

// Goal: losses of other evaluation data are not compared with those of before.
TEST(EvalTracker, BeginsAnewWhereTheEvaluationDataChanged) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("metrics.jsonl");
  std::ofstream(path) << "{\"kind\":\"eval\",\"step\":1,\"loss\":1.0}\n"
                         "{\"kind\":\"event\",\"code\":\"other_evaluation_data\"}\n"
                         "{\"kind\":\"eval\",\"step\":2,\"loss\":2.0}\n"
                         "{\"kind\":\"event\",\"code\":\"sample\"}\n"
                         "{\"kind\":\"event\",\"code\":7}\n"
                         "{\"kind\":\"eval\",\"step\":3,\"loss\":3.0}\n";
  const EvalTracker tracker = EvalTracker::of_metrics(path);
  EXPECT_EQ(tracker.best_loss(), 2.0);
  EXPECT_EQ(tracker.without_gain(), 1);
}

}  // namespace
}  // namespace longshore
