// Ranks that die or hang: the others end soon and name the rank, and the run resumes from its last
// checkpoint to the same weights.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "tests/parity/launched_ranks.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

constexpr int kRanks = 3;

std::vector<std::string> arguments(const std::string& timeout) {
  std::vector<std::string> list = RunDriver::golden_arguments("llama-tied");
  list.insert(list.end(),
              {"--train.steps=120", "--train.sequences_per_step=3", "--train.max_grad_norm=0.9",
               "--checkpoint.every_steps=10", "--dist.timeout=" + timeout});
  return list;
}

// Kills a rank after a random number of steps, until the run is complete. If its death were not
// reported, the others would wait for dist.timeout, longer than the test.
void kill_and_restart(int kills) {
  RunDriver unbroken("unbroken");
  ASSERT_EQ(unbroken.train_ranks(kRanks, arguments("24h")), 0) << unbroken.output();
  RunDriver run("killed");
  std::mt19937 random(5);
  int killed = 0;
  for (int i = 0; i < kills; ++i) {
    Launched launched(run, kRanks, arguments("24h"));
    if (!launched.wait_for_steps(1 + random() % 12)) break;
    const int victim = static_cast<int>(random() % kRanks);
    launched.signal(victim, SIGKILL);
    ASSERT_TRUE(launched.wait_for_end()) << run.output();
    if (launched.exit_code() == 0) break;
    ++killed;
    EXPECT_NE(run.output().find("rank " + std::to_string(victim)), std::string::npos)
        << run.output();
  }
  EXPECT_GE(killed, std::min(kills, 3));
  ASSERT_EQ(run.train_ranks(kRanks, arguments("24h")), 0) << run.output();
  EXPECT_EQ(run.steps("loss"), unbroken.steps("loss"));
  EXPECT_TRUE(run.state() == unbroken.state());
}

// A killed rank ends all ranks, and the run resumes.
TEST(RankFailure, AKilledRankEndsAllAndTheRunGoesOn) {
  kill_and_restart(4);
}

// Thirty kills end all ranks each time, and the run completes.
TEST(LongRankFailure, ThirtyKills) {
  kill_and_restart(30);
}

// A stopped rank is found when an operation exceeds dist.timeout.
TEST(RankFailure, AStoppedRankIsFoundAfterTheTimeOut) {
  RunDriver run("stopped");
  Launched launched(run, kRanks, arguments("4s"));
  ASSERT_TRUE(launched.wait_for_steps(2)) << run.output();
  launched.signal(1, SIGSTOP);
  ASSERT_TRUE(launched.wait_for_end()) << run.output();
  EXPECT_NE(launched.exit_code(), 0);
  EXPECT_NE(run.output().find("rank 1"), std::string::npos) << run.output();
}

}  // namespace
}  // namespace longshore
