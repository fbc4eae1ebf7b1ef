// Real processes die, stop or fail; all others must end in time and name the rank that did.
#include <gtest/gtest.h>

#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/file.h"
#include "comm/store/store_server.h"
#include "tests/comm/free_fixed_port.h"
#include "tests/comm/rank_process.h"

namespace longshore {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int32_t kSize = 3;
// Limit against hangs; on a quiet machine all ranks end within 10 s of the death of one.
constexpr seconds kHangGuard(300);
// A stopped rank is found after this silence; it is long enough for a busy machine.
constexpr int64_t kSilenceMs = 12'000;

class Failure : public testing::Test {
 protected:
  Failure() {
    std::string name = testing::TempDir() + "/longshore_failure_XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  ~Failure() override {
    ranks_.clear();
    remove_tree(directory_);
  }

  // Starts the ranks; this process or rank 0 serves the store.
  void start(bool agent_store, int64_t timeout_ms = 60'000,
             const std::vector<std::string>& behaviours = {"train", "train", "train"}) {
    if (agent_store) server_ = std::make_unique<StoreServer>(StoreServerOptions{});
    const uint16_t port = agent_store ? server_->port() : free_fixed_port();
    for (int32_t rank = 0; rank < kSize; ++rank) {
      ranks_.push_back(std::make_unique<RankProcess>(
          RankProcessOptions{.rank = rank,
                             .size = kSize,
                             .port = port,
                             .agent_store = agent_store,
                             .timeout_ms = timeout_ms,
                             .behaviour = behaviours[static_cast<size_t>(rank)],
                             .output = directory_ + "/" + std::to_string(rank)}));
    }
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->wait_until_ready(kHangGuard));
  }

  // Expects that all other ranks end with exit code 8, name the culprit and print `words`.
  void expect_blame(int32_t culprit, const std::string& words) {
    const auto end = steady_clock::now() + kHangGuard;
    for (int32_t rank = 0; rank < kSize; ++rank) {
      if (rank == culprit) continue;
      RankProcess& process = *ranks_[static_cast<size_t>(rank)];
      EXPECT_EQ(process.wait_for_end(end), 8) << process.words();
      const std::string said = process.words();
      EXPECT_NE(said.find("error: rank " + std::to_string(culprit) + " (host "), std::string::npos)
          << said;
      EXPECT_NE(said.find(words), std::string::npos) << said;
      EXPECT_NE(said.find("; rank " + std::to_string(rank) + " w"), std::string::npos) << said;
      EXPECT_NE(said.find(" #"), std::string::npos) << said;
    }
  }

  std::string directory_;
  std::unique_ptr<StoreServer> server_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

// Goal: when a rank is killed with SIGKILL, the other ranks end and name it.
TEST_F(Failure, ADeadRankIsNamedByAll) {
  start(true);
  ranks_[1]->send(SIGKILL);
  expect_blame(1, "died");
}

// Goal: when the rank that serves the store is killed, the other ranks end and name it.
TEST_F(Failure, TheDeathOfTheStoresServerIsNamedByAll) {
  start(false);
  ranks_[0]->send(SIGKILL);
  expect_blame(0, "rank 0 (");
}

// Goal: the rank that serves the store ends last, so that all ranks receive the failure.
TEST_F(Failure, TheStoresServerLetsTheOthersKnow) {
  start(false);
  ranks_[2]->send(SIGKILL);
  expect_blame(2, "died");
}

// Goal: a stopped rank is found after the time-out.
TEST_F(Failure, AStoppedRankIsNamedAfterTheTimeout) {
  start(true, kSilenceMs);
  ranks_[2]->send(SIGSTOP);
  expect_blame(2, "has been silent for");
}

// Goal: a stopped rank that serves the store is named after the time-out.
TEST_F(Failure, AStoppedStoreServerIsNamedAfterTheTimeout) {
  start(false, kSilenceMs);
  ranks_[0]->send(SIGSTOP);
  expect_blame(0, "has not answered for");
}

// Goal: ranks that are all suspended for longer than the time-out, and continued, carry on.
TEST_F(Failure, ARunThatWasSuspendedAsAWholeCarriesOn) {
  for (const bool agent_store : {true, false}) {
    ranks_.clear();
    start(agent_store, kSilenceMs, {"count", "count", "count"});
    for (const auto& rank : ranks_) rank->send(SIGSTOP);
    // The slack of a call to the store comes on top of the time-out.
    std::this_thread::sleep_for(std::chrono::milliseconds(kSilenceMs) + seconds(8));
    std::vector<size_t> said;
    for (const auto& rank : ranks_) said.push_back(rank->words().size());
    for (const auto& rank : ranks_) rank->send(SIGCONT);
    const auto end = steady_clock::now() + kHangGuard;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      // A hundred further steps take longer than a rank that blames another one needs to end.
      while (ranks_[rank]->words().size() < said[rank] + 2000 && steady_clock::now() < end) {
        ASSERT_FALSE(ranks_[rank]->wait_for_end(steady_clock::now())) << ranks_[rank]->words();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    ranks_[1]->send(SIGKILL);
    expect_blame(1, "died");
  }
}

// Goal: a process ends although its main thread is stuck in an operation.
TEST_F(Failure, AThreadThatIsStuckDoesNotKeepTheProcess) {
  start(true, 60'000, {"train", "train", "stuck"});
  ranks_[0]->send(SIGKILL);
  expect_blame(0, "died");
}

// Goal: a rank that fails sends its reason to all ranks and keeps its own exit code.
TEST_F(Failure, AFailureIsToldToAll) {
  start(false, 60'000, {"fail", "train", "train"});
  expect_blame(0, "failed: the data is damaged");
  EXPECT_EQ(ranks_[0]->wait_for_end(steady_clock::now() + kHangGuard), 5);
}

class LongFailure : public Failure {};

// Goal: all ranks end and name the killed one in 30 kills at random moments and ranks.
TEST_F(LongFailure, ThirtyKills) {
  std::mt19937 random(7);
  seconds longest(0);
  for (int i = 0; i < 30; ++i) {
    ranks_.clear();
    const bool agent_store = random() % 2 == 0;
    start(agent_store);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1000));
    const auto culprit = static_cast<int32_t>(random() % kSize);
    const auto begin = steady_clock::now();
    ranks_[static_cast<size_t>(culprit)]->send(SIGKILL);
    expect_blame(culprit, "rank " + std::to_string(culprit));
    longest = std::max(longest, std::chrono::ceil<seconds>(steady_clock::now() - begin));
  }
  RecordProperty("longest_seconds", static_cast<int>(longest.count()));
  std::printf("all ends within %lld s\n", static_cast<long long>(longest.count()));
}

}  // namespace
}  // namespace longshore
