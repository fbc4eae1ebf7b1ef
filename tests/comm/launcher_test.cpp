#include "comm/ranks/launcher.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "comm/ranks/rank_info.h"
#include "tests/comm/rank_process.h"

namespace longshore {
namespace {

LaunchOptions three_ranks(const std::string& behaviour) {
  LaunchOptions options;
  options.ranks = 3;
  options.command = {kLaunchedMode, behaviour};
  return options;
}

// Goal: launched ranks find each other by the launcher's variables, and all end with code 0.
TEST(Launcher, StartsRanksThatMeet) {
  EXPECT_EQ(launch_ranks(three_ranks("once")), 0);
}

// Goal: the launcher returns the exit code of the first rank that failed.
TEST(Launcher, GivesTheFirstFailure) {
  EXPECT_EQ(launch_ranks(three_ranks("die")), 128 + 9);
  EXPECT_EQ(launch_ranks(three_ranks("fail-1")), 5);
}

// Goal: each rank sees one GPU, in the order that the user gave. If GPUs are missing, none is
// hidden, so that the ranks can report it.
TEST(Launcher, GivesEachRankAGpu) {
  const auto none = std::nullopt;
  EXPECT_EQ(visible_gpu(none, 8, 2, 1), "1");
  EXPECT_EQ(visible_gpu(none, 8, 1, 0), "0");
  EXPECT_EQ(visible_gpu("5,2,7", 3, 2, 0), "5");
  EXPECT_EQ(visible_gpu("5,2,7", 3, 2, 1), "2");
  EXPECT_EQ(visible_gpu("3", 1, 1, 0), "3");
  EXPECT_EQ(visible_gpu("GPU-1f2e,MIG-77", 2, 2, 1), "MIG-77");
  EXPECT_EQ(visible_gpu(none, 0, 2, 1), none);
  EXPECT_EQ(visible_gpu(none, 1, 2, 0), none);
  EXPECT_EQ(visible_gpu("", 0, 1, 0), none);
  EXPECT_EQ(visible_gpu("5,2", 1, 2, 1), none) << "CUDA stopped at a GPU that is not there";
}

// Goal: a rank finds its GPU whether it sees all GPUs of the machine or its own only.
TEST(Launcher, RanksFindTheirGpu) {
  RankInfo ranks;
  ranks.local_rank = 2;
  EXPECT_EQ(gpu_of(ranks, 8), 2);
  EXPECT_EQ(gpu_of(ranks, 1), 0);
  EXPECT_EQ(gpu_of(ranks, 0), 2);
}

// Goal: launch options that contradict each other are refused.
TEST(Launcher, RefusesWrongOptions) {
  LaunchOptions options = three_ranks("once");
  options.nodes = 2;
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options.rendezvous = "host";
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options.rendezvous = "host:70000";
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options.nodes = 1;
  options.node = 1;
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options = three_ranks("once");
  options.command.clear();
  EXPECT_THROW(launch_ranks(options), ConfigError);
}

}  // namespace
}  // namespace longshore
