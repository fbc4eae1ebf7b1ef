// NCCL's settings and the report of a failed call, which need no GPU. The calls themselves have run
// on no machine yet (docs/measurements/README.md).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "comm/collectives/nccl_communicator.h"
#include "comm/ranks/process_identity.h"
#include "comm/store/store_server.h"
#include "comm/watchdog/watchdog.h"

namespace longshore {
namespace {

// Goal: whatever the environment says, sums go around a ring by one protocol and never through the
// switch, where they have other bits in every run.
TEST(Nccl, TheSettingsThatRepeatSumsReplaceTheEnvironment) {
  ASSERT_EQ(::setenv("NCCL_ALGO", "Tree", 1), 0);
  ASSERT_EQ(::setenv("NCCL_NVLS_ENABLE", "2", 1), 0);
  fix_nccl_settings();
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Ring");
  EXPECT_STREQ(std::getenv("NCCL_PROTO"), "Simple");
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
}

// Goal: a call of NCCL that fails on this rank is its own failure with NCCL's reason, not a broken
// connection to another rank.
TEST(Nccl, AFailedCallIsThisRanksOwnFailure) {
  const StoreServer server({});
  const StoreAddress address{"127.0.0.1", server.port()};
  const auto watchdog = Watchdog::start({.rank = 0,
                                         .identities = {identify_process(address)},
                                         .store = address,
                                         .secret = "",
                                         .prefix = "test/",
                                         .store_on_rank_0 = false,
                                         .timeout = std::chrono::seconds(60),
                                         .heartbeat = std::chrono::milliseconds(50),
                                         .grace = std::chrono::seconds(60),
                                         .before_exit = {}});
  const Operation operation{CommKind::kBarrier, {"connecting", {}}, "shards", 1, 0};
  const FailureReason reason =
      watchdog->blame_break(0, operation, "ncclCommInitRank: no space left on device");
  EXPECT_EQ(reason.culprit, 0);
  for (std::string_view words : {"rank 0 (", "it failed in", "connecting", "no space left"}) {
    EXPECT_NE(reason.cause.find(words), std::string::npos) << words << ": " << reason.cause;
  }
  EXPECT_EQ(reason.cause.find("connection to it broke"), std::string::npos) << reason.cause;
  watchdog->stop();
}

}  // namespace
}  // namespace longshore
