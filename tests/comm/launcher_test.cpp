#include "comm/ranks/launcher.h"

#include <gtest/gtest.h>

#include "base/errors.h"
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
