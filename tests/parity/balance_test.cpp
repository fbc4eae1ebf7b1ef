// The loss that balances experts, and the statistics of their routing, in whole runs.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

const std::string kGolden = "qwen3_moe-balanced";

Arguments short_run(const Arguments& more) {
  return joined(joined(RunDriver::golden_arguments(kGolden),
                       {"--train.steps=6", "--train.sequences_per_step=4"}),
                more);
}

void expect_near(const std::vector<double>& values, const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], tolerance) << i;
}

// Goal: the balance loss is of the whole step wherever blocks are, also in one unit with the head,
// which runs forward and backward at once.
TEST(Balance, UnitsMovesAndTiersGiveTheSameBits) {
  RunDriver reference("balance-reference");
  ASSERT_EQ(reference.train(short_run({})), 0);
  const std::string drive = "--offload.nvme=[\"" + scratch_directory("drive") + "\"]";
  for (const Arguments& way : std::vector<Arguments>{
           {"--fsdp.units={ groups = [[\"block.0.experts.0\"]] }", "--fsdp.prefetch=3"},
           {"--fsdp.units={ groups = [[\"block.1\", \"block.2\", \"head\"]] }",
            "--log.router=true"},
           {"--fsdp.units={ groups = [[\"block.0\", \"block.1\"]] }", "--fsdp.recompute=none"},
           {"--offload.optimizer=nvme", "--offload.parameters=nvme", "--offload.activations=nvme",
            drive}}) {
    RunDriver run("balance");
    ASSERT_EQ(run.train(short_run(way)), 0);
    EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << way.front();
    expect_near(run.steps("aux_loss"), reference.steps("aux_loss"), 1e-12);  // summed in doubles
    EXPECT_TRUE(run.state() == reference.state()) << way.front();
    run.expect_within_plan();
  }
}

// Goal: ranks with different tokens, or without a row, train on the balance loss of all tokens.
TEST(Balance, RanksShareOneLoss) {
  RunDriver one("balance-one");
  ASSERT_EQ(one.train(short_run({"--log.router=true"})), 0);
  for (const int ranks : {2, 4}) {
    RunDriver many("balance-ranks");
    ASSERT_EQ(many.train_ranks(ranks, short_run({"--log.router=true", "--train.micro_batch=2"})), 0)
        << many.output();
    expect_near(many.steps("aux_loss"), one.steps("aux_loss"), 1e-5);
    for (const auto& [name, values] : one.state()) {
      if (!name.ends_with(".master")) continue;
      EXPECT_LE(relative_error(many.state().at(name), values), 1e-4) << name;
    }
    const Json router = many.metrics("step").front().at("router");
    EXPECT_EQ(router.at("load"), one.metrics("step").front().at("router").at("load"));
  }
}

// Goal: the key wins over config.json, and the loss spreads tokens over experts.
TEST(Balance, TheKeySpreadsTokens) {
  RunDriver without("balance-without"), with("balance-with");
  const Arguments run = {"--train.steps=15", "--log.router=true", "--optimizer.lr=0.02"};
  ASSERT_EQ(without.train(short_run(joined(run, {"--train.router_aux_loss=0"}))), 0);
  ASSERT_EQ(with.train(short_run(joined(run, {"--train.router_aux_loss=5"}))), 0);
  EXPECT_FALSE(without.metrics("step").front().contains("aux_loss"));
  const std::vector<double> losses = with.steps("aux_loss");
  EXPECT_LT(losses.back(), losses.front());
  const auto largest = [](const RunDriver& driver) {
    return driver.metrics("step").back().at("router").at("max_load").get<double>();
  };
  EXPECT_LT(largest(with), largest(without));
}

// Goal: the statistics count every choice of every token in every sparse layer.
TEST(Balance, FiguresCountEveryChoice) {
  RunDriver run("balance-figures");
  ASSERT_EQ(run.train(short_run({"--log.router=true"})), 0);
  for (const Json& step : run.metrics("step")) {
    const Json& router = step.at("router");
    ASSERT_EQ(router.at("load").size(), 2u) << "the layer between is dense";
    for (const Json& layer : router.at("load")) {
      const auto load = layer.get<std::vector<int64_t>>();
      EXPECT_EQ(std::accumulate(load.begin(), load.end(), int64_t{0}),
                2 * step.at("tokens").get<int64_t>());
    }
    EXPECT_EQ(router.at("dropped"), 0);
    EXPECT_GE(router.at("idle_experts").get<int64_t>(), 2) << "those that the golden case has";
    EXPECT_GT(router.at("entropy").get<double>(), 0.0);
    EXPECT_LT(router.at("entropy").get<double>(), std::log(6.0));
  }
}

// Goal: the keys are refused for a model without experts.
TEST(Balance, ModelsWithoutExpertsRefuseTheKeys) {
  RunDriver run("balance-refused");
  for (const std::string key : {"--train.router_aux_loss=0.1", "--log.router=true"}) {
    EXPECT_EQ(run.train(joined(RunDriver::golden_arguments("llama"), {key})), 2) << key;
  }
}

}  // namespace
}  // namespace longshore
