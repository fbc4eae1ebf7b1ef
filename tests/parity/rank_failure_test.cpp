// Ranks that die or stand still: the others end soon, say who it was, and the run goes on from its
// last checkpoint to the same weights.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 3;

std::vector<std::string> arguments(const std::string& timeout) {
  std::vector<std::string> list = RunDriver::golden_arguments("llama-tied");
  list.insert(list.end(),
              {"--train.steps=120", "--train.sequences_per_step=3", "--train.max_grad_norm=0.9",
               "--checkpoint.every_steps=10", "--dist.timeout=" + timeout});
  return list;
}

std::vector<pid_t> children_of(pid_t parent) {
  const std::string id = std::to_string(parent);
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

// The rank of a process, as its environment says; -1 when it is gone.
int rank_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ", std::ios::binary);
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable.starts_with("RANK=")) return std::stoi(variable.substr(5));
  }
  return -1;
}

// A launcher with its ranks, all gone when the object is.
class Launched {
 public:
  Launched(const RunDriver& run, const std::vector<std::string>& list)
      : run_(run), launcher_(run.start_ranks(kRanks, list)) {}
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() {
    if (!ended_) ::kill(-launcher_, SIGKILL);
    for (pid_t rank : ranks_) ::kill(rank, SIGKILL);
    if (!ended_) ::waitpid(launcher_, nullptr, 0);
  }

  // Waits until the run has written so many more step lines.
  bool wait_for_steps(size_t more) {
    const auto count = [this] { return run_.metrics_lines(); };
    const size_t target = count() + more;
    const auto deadline = Clock::now() + std::chrono::seconds(120);
    while (count() < target && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ranks_ = children_of(launcher_);
    return count() >= target;
  }

  // Sends the signal to one rank's process.
  void signal(int rank, int number) const {
    for (pid_t process : ranks_) {
      if (rank_of(process) == rank) ::kill(process, number);
    }
  }

  // Seconds until the launcher ended; its exit code is left in exit_code().
  double wait_for_end() {
    const auto begin = Clock::now();
    int status = 0;
    while (::waitpid(launcher_, &status, WNOHANG) == 0) {
      if (Clock::now() - begin > std::chrono::seconds(120)) return 1e9;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ended_ = true;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  int exit_code() const { return exit_code_; }

 private:
  const RunDriver& run_;
  pid_t launcher_;
  std::vector<pid_t> ranks_;
  bool ended_ = false;
  int exit_code_ = -1;
};

// Kills a rank after a random number of steps, again and again, until the run is through.
void kill_and_restart(int kills) {
  RunDriver unbroken("unbroken");
  ASSERT_EQ(unbroken.train_ranks(kRanks, arguments("60s")), 0) << unbroken.output();
  RunDriver run("killed");
  std::mt19937 random(5);
  int killed = 0;
  for (int i = 0; i < kills; ++i) {
    Launched launched(run, arguments("60s"));
    if (!launched.wait_for_steps(1 + random() % 12)) break;
    const int victim = static_cast<int>(random() % kRanks);
    launched.signal(victim, SIGKILL);
    // Ten seconds, and as many again for a busy machine.
    EXPECT_LE(launched.wait_for_end(), 20.0);
    if (launched.exit_code() == 0) break;
    ++killed;
    EXPECT_NE(run.output().find("rank " + std::to_string(victim)), std::string::npos)
        << run.output();
  }
  EXPECT_GE(killed, std::min(kills, 3));
  ASSERT_EQ(run.train_ranks(kRanks, arguments("60s")), 0) << run.output();
  EXPECT_EQ(run.steps("loss"), unbroken.steps("loss"));
  EXPECT_TRUE(run.state() == unbroken.state());
}

TEST(RankFailure, AKilledRankEndsAllAndTheRunGoesOn) {
  kill_and_restart(4);
}

TEST(LongRankFailure, ThirtyKills) {
  kill_and_restart(30);
}

// A rank that stands still is found when an operation outlives dist.timeout.
TEST(RankFailure, AStoppedRankIsFoundAfterTheTimeOut) {
  RunDriver run("stopped");
  Launched launched(run, arguments("4s"));
  ASSERT_TRUE(launched.wait_for_steps(2)) << run.output();
  launched.signal(1, SIGSTOP);
  EXPECT_LE(launched.wait_for_end(), 4.0 + 10.0 + 10.0) << run.output();
  EXPECT_NE(launched.exit_code(), 0);
  EXPECT_NE(run.output().find("rank 1"), std::string::npos) << run.output();
}

}  // namespace
}  // namespace longshore
