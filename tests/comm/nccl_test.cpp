// NCCL's settings and the report of a failed call, which need no GPU. The calls themselves have run on
// no machine yet (docs/measurements/README.md).
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/collectives/nccl_communicator.h"

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

}  // namespace
}  // namespace longshore
