// Corrections of routers' choices that a run moves (train.router_correction_rate): they follow the
// loads of whole steps, and are kept, resumed, evaluated and exported to the bit.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace longshore {
namespace {

constexpr float kRate = 0.05F;
const std::string kGolden = "glm4_moe";
constexpr size_t kExperts = 6;

Arguments moving(int steps, const Arguments& more = {}, const std::string& golden = kGolden) {
  return joined(joined(RunDriver::golden_arguments(golden),
                       {"--train.router_correction_rate=0.05", "--log.router=true",
                        "--train.sequences_per_step=4", "--train.steps=" + std::to_string(steps)}),
                more);
}

std::vector<float> corrections_of(const RunDriver& run) {
  const std::string newest = list_checkpoints(run.directory() + "/checkpoints").at(0).path;
  return Checkpoint::open(newest).manifest().progress.router_corrections;
}

// Returns the corrections that the published rule gives from the loads that the run recorded. Each
// sum is in fp32, as the corrections are. The last layer has experts, others may have none.
std::vector<float> by_the_rule(const RunDriver& run, const std::string& golden = kGolden) {
  std::vector<float> all;
  std::vector<size_t> layers;
  for (const auto& [name, stored] : read_tensors(golden_directory(golden) + "/model.safetensors")) {
    if (!name.ends_with(".e_score_correction_bias")) continue;
    layers.push_back(std::stoul(name.substr(name.find(".layers.") + 8)));
    all.resize(layers.back() * kExperts);
    all.insert(all.end(), stored.begin(), stored.end());
  }
  for (const Json& step : run.metrics("step")) {
    if (step.at("skipped").get<bool>()) continue;
    const Json& loads = step.at("router").at("load");
    for (size_t layer = 0; layer < loads.size(); ++layer) {
      double mean = 0.0;
      for (const Json& load : loads[layer]) mean += load.get<double>() / kExperts;
      for (size_t expert = 0; expert < kExperts; ++expert) {
        const double difference = mean - loads[layer][expert].get<double>();
        const float sign = difference > 1e-9 ? 1.0F : difference < -1e-9 ? -1.0F : 0.0F;
        all[layers.at(layer) * kExperts + expert] += kRate * sign;
      }
    }
  }
  return all;
}

// Goal: the corrections follow the published rule, and change the experts that later steps choose;
// tiers, units and the time of updates change no bit.
TEST(MovedCorrections, FollowTheRuleWithTheSameBitsOnEveryTier) {
  RunDriver reference("moved"), still("still");
  ASSERT_EQ(reference.train(moving(6)), 0);
  ASSERT_EQ(still.train(moving(6, {"--train.router_correction_rate=0.0"})), 0);
  EXPECT_EQ(corrections_of(reference), by_the_rule(reference));
  EXPECT_TRUE(corrections_of(still).empty());
  EXPECT_EQ(reference.steps("loss").at(0), still.steps("loss").at(0));
  EXPECT_NE(reference.steps("loss"), still.steps("loss"));
  const std::string drive = "--offload.nvme=[\"" + scratch_directory("drive") + "\"]";
  for (const Arguments& way :
       std::vector<Arguments>{{"--fsdp.units=\"half\""},
                              {"--fsdp.units={ groups = [[\"block.1\", \"block.2\", \"head\"]] }"},
                              {"--optimizer.overlap=backward", "--log.router=true"},
                              {"--offload.optimizer=nvme", "--offload.parameters=nvme", drive}}) {
    RunDriver run("moved-way");
    ASSERT_EQ(run.train(moving(6, way)), 0);
    EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << way.front();
    EXPECT_EQ(corrections_of(run), corrections_of(reference)) << way.front();
    EXPECT_TRUE(run.state() == reference.state()) << way.front();
    run.expect_within_plan();
  }
}

// Goal: they follow the rule where a layer is experts alone, and groups of experts change no bit.
TEST(MovedCorrections, FollowTheRuleInLayersOfExpertsAlone) {
  const std::string golden = "nemotron_h-moe";
  RunDriver whole("moved-alone"), groups("moved-groups");
  ASSERT_EQ(whole.train(moving(4, {}, golden)), 0);
  ASSERT_EQ(
      groups.train(moving(4, {"--fsdp.units={ groups = [[\"block.3.experts.0\"]] }"}, golden)), 0);
  EXPECT_EQ(corrections_of(whole), by_the_rule(whole, golden));
  EXPECT_EQ(corrections_of(groups), corrections_of(whole));
  EXPECT_EQ(groups.steps("loss"), whole.steps("loss"));
}

// Goal: ranks move them by the loads of all ranks.
TEST(MovedCorrections, FollowTheLoadsOfAllRanks) {
  for (const int ranks : {2, 4}) {
    RunDriver run("moved-ranks");
    ASSERT_EQ(run.train_ranks(ranks, moving(4)), 0) << run.output();
    EXPECT_EQ(corrections_of(run), by_the_rule(run)) << ranks;
  }
}

// Goal: a run that is stopped and resumed, from a checkpoint or from its drives, has the bits of
// one that is not, also where evaluations come between.
TEST(MovedCorrections, AreResumedToTheBit) {
  const Arguments evaluated = {"--eval.every_steps=2",
                               "--data.eval=[\"" + golden_directory(kGolden) + "/train.jsonl\"]"};
  RunDriver whole("moved-whole");
  ASSERT_EQ(whole.train(moving(6, evaluated)), 0);
  for (const bool drives : {false, true}) {
    RunDriver run("moved-parts");
    Arguments way = evaluated;
    if (drives) {
      way = joined(
          way, {"--offload.optimizer=nvme", "--offload.nvme=[\"" + run.directory() + "/drive\"]"});
    }
    ASSERT_EQ(run.train(moving(3, way)), 0);
    ASSERT_EQ(run.train(moving(6, way)), 0);
    EXPECT_EQ(run.steps("loss"), whole.steps("loss")) << drives;
    EXPECT_EQ(corrections_of(run), corrections_of(whole)) << drives;
    EXPECT_TRUE(run.state() == whole.state()) << drives;
    EXPECT_EQ(corrections_of(run), by_the_rule(run)) << drives;
  }
}

// Goal: the state on drives is refused without the corrections that its last step names.
TEST(MovedCorrections, DrivesNeedTheirFile) {
  RunDriver run("moved-lost");
  const Arguments way = {"--offload.optimizer=nvme",
                         "--offload.nvme=[\"" + run.directory() + "/drive\"]"};
  ASSERT_EQ(run.train(moving(2, way)), 0);
  const std::string folder = run.directory() + "/router_corrections";
  ASSERT_TRUE(std::filesystem::exists(folder + "/step-2"));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run.train(moving(4, way)), 6);
}

// Goal: a step that is skipped moves nothing.
TEST(MovedCorrections, ASkippedStepMovesNothing) {
  RunDriver run("moved-skipped"), one("moved-one");
  ASSERT_EQ(run.train(moving(3, {"--optimizer.lr=1e38"})), 0);
  ASSERT_EQ(one.train(moving(1)), 0);
  EXPECT_TRUE(run.metrics("step").at(2).at("skipped").get<bool>());
  EXPECT_EQ(corrections_of(run), corrections_of(one));
}

// Goal: exports hold them in fp32, whether the run writes them or `export` does, and evaluations of
// the checkpoint and of the export agree.
TEST(MovedCorrections, AreExportedAndEvaluated) {
  RunDriver run("moved-export");
  ASSERT_EQ(run.train(moving(4, {"--checkpoint.export=end"})), 0);
  const std::string other = scratch_directory("moved-export-again");
  const std::string config = run.directory() + "/config.toml";
  ASSERT_EQ(run_command({"export", config, "--to", other}).exit_code, 0);
  const std::vector<float> corrections = corrections_of(run);
  for (const std::string& directory : {run.directory() + "/hf", other}) {
    const auto exported = read_tensors(directory + "/model.safetensors");
    for (const size_t layer : {1, 2}) {
      const auto first = corrections.begin() + static_cast<std::ptrdiff_t>(layer * kExperts);
      EXPECT_EQ(exported.at("model.layers." + std::to_string(layer) +
                            ".mlp.gate.e_score_correction_bias"),
                std::vector<float>(first, first + kExperts));
    }
  }
  const Arguments evaluated = {config,
                               "--data.eval=[\"" + golden_directory(kGolden) + "/train.jsonl\"]"};
  const double loss = eval_loss(evaluated);
  EXPECT_NE(loss, eval_loss(joined(evaluated, {"--from", "model"})));
  EXPECT_EQ(loss, eval_loss(joined(evaluated, {"--from", run.directory() + "/hf"})));
  std::filesystem::remove_all(other);
}

// Goal: the key is refused where there are no corrections to move, or none that could be kept.
TEST(MovedCorrections, AreRefusedWithoutCorrections) {
  const Arguments rate = {"--train.router_correction_rate=0.001"};
  RunDriver run("moved-refused");
  for (const std::string golden : {"llama", "qwen3_moe"}) {
    EXPECT_EQ(run.train(joined(RunDriver::golden_arguments(golden), rate)), 2) << golden;
  }
  EXPECT_EQ(run.train(moving(2, {"--adapter.kind=lora"})), 2);
  EXPECT_EQ(run.train(moving(2, {"--optimizer.overlap=backward", "--offload.optimizer=nvme",
                                 "--offload.nvme=[\"" + run.directory() + "/drive\"]"})),
            2);
}

}  // namespace
}  // namespace longshore
