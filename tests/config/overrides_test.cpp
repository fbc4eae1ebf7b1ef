#include "config/overrides.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace longshore {
namespace {

using Strings = std::vector<std::string>;

TEST(Overrides, AreTakenOutOfTheArguments) {
  const SplitArguments split = split_overrides({"run.toml", "--train.steps=5", "--json", "-q",
                                                "--run.dir", "runs/a=b", "--out=a.b", "b.toml"});
  EXPECT_EQ(split.rest, (Strings{"run.toml", "--json", "-q", "--out=a.b", "b.toml"}));
  ASSERT_EQ(split.overrides.size(), 2u);
  EXPECT_EQ(split.overrides[0].key, "train.steps");
  EXPECT_EQ(split.overrides[0].value, "5");
  EXPECT_EQ(split.overrides[1].key, "run.dir");
  EXPECT_EQ(split.overrides[1].value, "runs/a=b");
}

TEST(Overrides, KeepEverythingAfterTheFirstEqualsSign) {
  const SplitArguments split = split_overrides({"--model.path=a=b", "--run.dir="});
  EXPECT_EQ(split.overrides[0].value, "a=b");
  EXPECT_EQ(split.overrides[1].value, "");
}

TEST(Overrides, ANegativeNumberIsAValue) {
  const SplitArguments split = split_overrides({"--optimizer.lr", "-1"});
  EXPECT_EQ(split.overrides.at(0).value, "-1");
}

TEST(Overrides, EndAtTheDoubleDash) {
  const SplitArguments split = split_overrides({"--run.seed=1", "--", "--run.seed=2"});
  EXPECT_EQ(split.overrides.size(), 1u);
  EXPECT_EQ(split.rest, (Strings{"--", "--run.seed=2"}));
}

TEST(Overrides, AllMissingValuesAreNamed) {
  try {
    split_overrides({"--run.seed", "--run.dir=x", "--train.steps"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems(), (Strings{"--run.seed: a value is missing: write --run.seed=value",
                                         "--train.steps: a value is missing: write "
                                         "--train.steps=value"}));
  }
}

}  // namespace
}  // namespace longshore
