// Ranks run as real processes while a stranger connects to the store's port, from before the store
// exists to the end. They meet, compute and end undisturbed, and nothing hangs.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "comm/ranks/launcher.h"
#include "tests/comm/free_fixed_port.h"
#include "tests/comm/rank_process.h"
#include "tests/comm/stranger.h"

namespace longshore {
namespace {

// Goal: the launcher serves its ranks and ends although connections with half messages are open.
TEST(StrangerAtTheStore, TheLauncherServesItsRanksAndEnds) {
  const uint16_t port = free_fixed_port();
  const Stranger stranger(port);
  LaunchOptions options;
  options.ranks = 3;
  options.rendezvous = "127.0.0.1:" + std::to_string(port);
  options.command = {kLaunchedMode, "once"};
  EXPECT_EQ(launch_ranks(options), 0);
  options.command = {kLaunchedMode, "die"};
  EXPECT_EQ(launch_ranks(options), 128 + SIGKILL);
  EXPECT_GT(stranger.connections(), 10);
}

// Goal: rank 0 serves the store at a port that a stranger waits for, and ends with the others.
TEST(StrangerAtTheStore, ARankThatServesEndsWithTheOthers) {
  const uint16_t port = free_fixed_port();
  const Stranger stranger(port);
  std::string directory = testing::TempDir() + "/longshore_stranger_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>(
        RankProcessOptions{.rank = rank,
                           .size = 3,
                           .port = port,
                           .agent_store = false,
                           .timeout_ms = 240'000,
                           .behaviour = "once",
                           .output = directory + "/" + std::to_string(rank)}));
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(300);
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait_for_end(end), 0) << rank->words();
  EXPECT_GT(stranger.connections(), 10);
  remove_tree(directory);
}

}  // namespace
}  // namespace longshore
