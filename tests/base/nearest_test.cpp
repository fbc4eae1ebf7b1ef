#include "base/texts.h"

#include <gtest/gtest.h>

#include <array>

namespace longshore {
namespace {

// The edit distance counts insertions, deletions, replacements and swaps.
TEST(Nearest, CountsChanges) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("weigth_decay", "weight_decay"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("lr", "rl"), 1);
}

// The closest name is proposed, and none where no name is close.
TEST(Nearest, FindsTheClosestNameWithinReason) {
  const std::array<std::string, 4> names = {"lr", "betas", "eps", "weight_decay"};
  EXPECT_EQ(nearest_name("weigth_decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("weight-decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("beta", names), "betas");
  EXPECT_EQ(nearest_name("l", names), "lr");
  EXPECT_EQ(nearest_name("momentum", names), "");
  EXPECT_EQ(nearest_name(std::string(100'000, 'x'), names), "");
  EXPECT_EQ(nearest_name("lr", {}), "");
}

// A glob covers the whole name, dots and slashes included; blanks inside a text stay.
TEST(Texts, MatchGlobsAndLoseBlanksAtTheirEnds) {
  EXPECT_TRUE(glob_matches("*.bias", "layers.0/self.bias"));
  EXPECT_TRUE(glob_matches("layers.[01].?", "layers.1.w"));
  EXPECT_FALSE(glob_matches("bias", "layers.0.bias"));
  EXPECT_FALSE(glob_matches("layers.?", "layers.10"));
  EXPECT_EQ(trimmed(" \t a b\r\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
  EXPECT_EQ(trimmed(""), "");
}

}  // namespace
}  // namespace longshore
