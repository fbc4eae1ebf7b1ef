#include "config/run_arguments.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/config/run_file_fixture.h"

namespace longshore {
namespace {

using Strings = std::vector<std::string>;

// Arguments with a dot in their name are taken as overrides; others stay as they are.
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

// The value of an override is everything after the first equals sign.
TEST(Overrides, KeepEverythingAfterTheFirstEqualsSign) {
  const SplitArguments split = split_overrides({"--model.path=a=b", "--run.dir="});
  EXPECT_EQ(split.overrides[0].value, "a=b");
  EXPECT_EQ(split.overrides[1].value, "");
}

// An argument such as -1 after a key is its value.
TEST(Overrides, ANegativeNumberIsAValue) {
  const SplitArguments split = split_overrides({"--optimizer.lr", "-1"});
  EXPECT_EQ(split.overrides.at(0).value, "-1");
}

// Arguments after "--" are not overrides.
TEST(Overrides, EndAtTheDoubleDash) {
  const SplitArguments split = split_overrides({"--run.seed=1", "--", "--run.seed=2"});
  EXPECT_EQ(split.overrides.size(), 1u);
  EXPECT_EQ(split.rest, (Strings{"--", "--run.seed=2"}));
}

// Every override without a value is named in one error.
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

class OverrideValues : public RunFileFixture {
 protected:
  static RunConfig with(const std::vector<Override>& overrides, const std::string& file = kNeeded) {
    return load(file, overrides);
  }
};

// A single path or glob for a list key becomes a list of one.
TEST_F(OverrideValues, APathWithoutBracketsIsAListOfOne) {
  EXPECT_EQ(with({{"data.train", "a.jsonl"}}).data.train, Strings{"a.jsonl"});
  EXPECT_EQ(with({{"data.train", "2024-01-01"}}).data.train, Strings{"2024-01-01"});
  EXPECT_EQ(with({{"data.train", "[\"a\", \"b\"]"}}).data.train, (Strings{"a", "b"}));
  EXPECT_EQ(with({{"train.freeze", "\"*.bias\""}}).train.freeze, Strings{"*.bias"});
}

// Goal: an override wins over a contradicting key of the run file.
TEST_F(OverrideValues, DisplaceTheRivalKeyOfTheFile) {
  const std::string epochs =
      "run.dir = \"r\"\nmodel.path = \"m\"\ndata.train = [\"t\"]\ntrain.epochs = 2\n";
  const RunConfig steps = with({{"train.steps", "200"}}, epochs);
  EXPECT_EQ(steps.train.steps, 200);
  EXPECT_EQ(steps.train.epochs, 0.0);
  EXPECT_EQ(with({{"train.epochs", "3"}}).train.steps, 0);
  EXPECT_EQ(with({{"train.steps", "0"}}, epochs).train.epochs, 2.0);
  EXPECT_EQ(with({{"eval.split", "0.1"}}, std::string(kNeeded) + "data.eval = [\"e\"]\n").data.eval,
            Strings{});
  const RunConfig ratio = with({{"schedule.warmup_ratio", "0.1"}},
                               std::string(kNeeded) + "schedule.warmup_steps = 10\n");
  EXPECT_EQ(ratio.schedule.warmup_steps, 0);
  EXPECT_EQ(ratio.schedule.warmup_ratio, 0.1);
  // Two contradicting overrides are refused.
  EXPECT_NE(problems(kNeeded, {{"train.steps", "1"}, {"train.epochs", "1"}}), "accepted");
}

// Goal: what stands beside adapter.path is kept for a comparison with the adapter, and says whether
// it is a value of a file under an adapter that the command line names.
TEST_F(OverrideValues, AreToldFromTheFilesBesideTheAdaptersPath) {
  const std::string lora =
      std::string(kNeeded) + "adapter.kind = \"lora\"\nadapter.r = 4\nadapter.alpha = 8\n";
  const AdapterSection named = with({{"adapter.path", "a"}, {"adapter.alpha", "16"}}, lora).adapter;
  ASSERT_EQ(named.beside_path.size(), 2u);
  EXPECT_EQ(named.beside_path[0].name, "adapter.r");
  EXPECT_EQ(named.beside_path[0].value, "4");
  EXPECT_TRUE(named.beside_path[0].replaced);
  EXPECT_EQ(named.beside_path[1].value, "16.0");
  EXPECT_FALSE(named.beside_path[1].replaced) << "the command line has both";
  EXPECT_EQ(named.r, AdapterSection{}.r) << "the record of the run names the adapter alone";
  EXPECT_TRUE(with({}, lora).adapter.beside_path.empty());
}

// An override holds exactly one TOML value, so it cannot inject other keys.
TEST_F(OverrideValues, HoldOneValueOfTomlAndNothingElse) {
  for (const std::string injected :
       {"5 # comment", "5\n[optimizer]\nlr = 1", "5\rlr = 1", "5, 6", "5,", "5]\nx = [1"}) {
    EXPECT_NE(problems(kNeeded, {{"train.steps", injected}}), "accepted") << injected;
  }
  EXPECT_NE(problems(kNeeded, {{"run.dir", "runs/\xff"}}).find("not UTF-8"), std::string::npos);
  EXPECT_NE(problems(kNeeded, {{"run.dir", "runs/\xff"}}).find("runs/\\xff"), std::string::npos);
}

}  // namespace
}  // namespace longshore
