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

// Goal: the ranks find each other by the launcher's variables, and all end well.
TEST(Launcher, StartsRanksThatMeet) {
  EXPECT_EQ(launch_ranks(three_ranks("once")), 0);
}

// Goal: the code is that of the first rank that failed, not of those that noticed.
TEST(Launcher, GivesTheFirstFailure) {
  EXPECT_EQ(launch_ranks(three_ranks("die")), 128 + 9);
  EXPECT_EQ(launch_ranks(three_ranks("fail-1")), 5);
}

// Goal: each rank sees its own GPU alone, in the user's order where the user chose; where GPUs are
// missing nothing is hidden, so that the ranks can say so.
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

// Goal: a rank finds its GPU whether it sees all of the machine's or its own alone.
TEST(Launcher, RanksFindTheirGpu) {
  RankInfo ranks;
  ranks.local_rank = 2;
  EXPECT_EQ(gpu_of(ranks, 8), 2);
  EXPECT_EQ(gpu_of(ranks, 1), 0);
  EXPECT_EQ(gpu_of(ranks, 0), 2);
}

// Goal: options that do not go together are refused.
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
