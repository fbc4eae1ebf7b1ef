// Evaluation, early stopping and samples on several ranks: all ranks end at the same step, and rank
// 0 writes the files of a single rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "tests/parity/run_driver.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

// Training makes the evaluated text less likely from the first step on: the first of three
// evaluations is the best, and patience runs out long before the last step.
Arguments arguments(const std::string& directory) {
  const std::string rows = directory + "/rows.jsonl", other = directory + "/other.jsonl";
  std::ofstream file(rows);
  for (int row = 0; row < 12; ++row) {
    file << "{\"text\": \"a row of text, number " << row << "\"}\n";
  }
  std::ofstream(other) << "{\"text\": \"QZ%%&XK<<|>JW 91#\"}\n{\"text\": \"QZ%%&XK<<|>JW 48#\"}\n";
  return {"--model.path=\"" + directory + "/model\"",
          "--data.train=[\"" + rows + "\"]",
          "--data.eval=[\"" + other + "\"]",
          "--data.max_tokens=64",
          "--data.packing=false",
          "--train.steps=40",
          "--train.sequences_per_step=3",
          "--optimizer.lr=0.01",
          "--precision.compute=fp32",
          "--offload.state_format=split",
          "--device.threads=1",
          "--offload.threads=1",
          "--checkpoint.export=never",
          "--eval.every_steps=2",
          "--eval.patience=2",
          "--eval.keep_best=true",
          "--eval.prompts=[\"a row\"]",
          "--eval.max_new_tokens=4"};
}

std::vector<std::string> samples_of(const RunDriver& run) {
  std::vector<std::string> texts;
  for (const Json& event : run.metrics("event")) {
    if (event.value("code", "") == "sample") texts.push_back(event.at("text"));
  }
  return texts;
}

// All ranks end at the same step when patience runs out, with one rank's samples.
TEST(Evaluation, EndsAllRanksOutOfPatienceAtTheSameStepWithTheSamplesOfOne) {
  const std::string directory = scratch_directory("evaluation");
  ASSERT_EQ(run_command_line({"init-model", "--preset", "tiny-llama", directory + "/model"}), 0);
  const Arguments list = arguments(directory);
  RunDriver one("evaluation-1");
  ASSERT_EQ(one.train(list), 0);
  const std::vector<Json> wanted = one.metrics("eval");
  ASSERT_EQ(wanted.size(), 3u);
  EXPECT_EQ(one.metrics("step").size(), 6u);
  EXPECT_EQ(samples_of(one).size(), wanted.size());
  EXPECT_EQ(samples_of(one).front().rfind("a row", 0), 0u);
  for (const int ranks : {2, 4}) {
    RunDriver several("evaluation-" + std::to_string(ranks));
    ASSERT_EQ(several.train_ranks(ranks, list), 0) << several.output();
    const std::vector<Json> found = several.metrics("eval");
    ASSERT_EQ(found.size(), wanted.size()) << several.output();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].at("step"), wanted[i].at("step"));
      EXPECT_EQ(found[i].at("tokens"), wanted[i].at("tokens"));
      const double loss = wanted[i].at("loss");
      EXPECT_NEAR(found[i].at("loss").get<double>(), loss, 1e-4 * loss);
    }
    EXPECT_EQ(several.metrics("step").size(), one.metrics("step").size());
    EXPECT_EQ(samples_of(several), samples_of(one));
    EXPECT_NE(several.output().find("the run ends here (eval.patience)"), std::string::npos);
    // A second start of a run that ran out of patience ends at once.
    ASSERT_EQ(several.train_ranks(ranks, list), 0) << several.output();
    EXPECT_EQ(several.metrics("step").size(), one.metrics("step").size());
  }
}

// Goal: if evaluations fall and then rise, the checkpoint of the lowest loss is kept beside the
// run's own, and gives that loss again.
TEST(Evaluation, KeepsTheCheckpointOfTheLowestLoss) {
  const RunDriver run("evaluation-best");
  const std::string model = run.directory() + "/model", rows = run.directory() + "/rows.jsonl",
                    other = run.directory() + "/other.jsonl";
  ASSERT_EQ(run_command_line({"init-model", "--preset", "tiny-llama", model}), 0);
  // Training learns the letters first, which both texts have, and then their order, which one has.
  std::ofstream(rows) << "{\"text\": \"abcdefghabcdefgh\"}\n";
  std::ofstream(other) << "{\"text\": \"hgfedcbahgfedcba\"}\n";
  const Arguments list = {"--model.path=\"" + model + "\"",
                          "--data.train=[\"" + rows + "\"]",
                          "--data.eval=[\"" + other + "\"]",
                          "--data.max_tokens=64",
                          "--train.steps=40",
                          "--train.sequences_per_step=1",
                          "--optimizer.lr=0.01",
                          "--schedule.name=constant",
                          "--precision.compute=fp32",
                          "--device.threads=1",
                          "--offload.threads=1",
                          "--checkpoint.export=never",
                          "--checkpoint.keep=1",
                          "--eval.every_steps=1",
                          "--eval.keep_best=true"};
  ASSERT_EQ(run.train(list), 0);
  const std::vector<Json> found = run.metrics("eval");
  ASSERT_EQ(found.size(), 40u);
  const auto lowest = std::ranges::min_element(
      found, {}, [](const Json& line) { return line.at("loss").get<double>(); });
  EXPECT_GT(lowest->at("step").get<int64_t>(), 1) << "it falls";
  EXPECT_LT(lowest->at("step").get<int64_t>(), 40) << "and rises";
  const std::vector<CheckpointEntry> kept = list_checkpoints(run.directory() + "/best");
  ASSERT_EQ(kept.size(), 1u);
  testing::internal::CaptureStdout();
  const int exit_code = run_command_line(
      {"eval", run.directory() + "/config.toml", "--json", "--from", kept.front().path});
  const Json again = Json::parse(testing::internal::GetCapturedStdout());
  ASSERT_EQ(exit_code, 0);
  EXPECT_EQ(again.at("step"), lowest->at("step"));
  EXPECT_EQ(again.at("loss"), lowest->at("loss"));
}

Json evaluated(Arguments arguments) {
  testing::internal::CaptureStdout();
  arguments.insert(arguments.begin(), {"eval", "--json"});
  const int exit_code = run_command_line(arguments);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(exit_code, 0) << text;
  return exit_code == 0 ? Json::parse(text) : Json();
}

// Goal: each set of eval.sets has the loss that it has alone; without data.eval the run is judged
// by the mean over the tokens of all sets.
TEST(Evaluation, GivesEachNamedSetALossOfItsOwn) {
  const RunDriver run("evaluation-sets");
  const std::string rows = run.directory() + "/rows.jsonl",
                    other = run.directory() + "/other.jsonl";
  ASSERT_EQ(run_command_line({"init-model", "--preset", "tiny-llama", run.directory() + "/model"}),
            0);
  const Arguments list = joined(
      arguments(run.directory()),
      {"--data.eval=[]", "--eval.sets={ near = \"" + rows + "\", far = [\"" + other + "\"] }",
       "--train.steps=2", "--eval.patience=0", "--eval.keep_best=false", "--eval.prompts=[]"});
  ASSERT_EQ(run.train(list), 0);
  ASSERT_EQ(run.metrics("eval").size(), 1u);
  const Json line = run.metrics("eval").front();
  const std::string config = run.directory() + "/config.toml";
  double sum = 0.0, tokens = 0.0;
  for (const auto& [name, file] : {std::pair{"near", rows}, std::pair{"far", other}}) {
    const Json alone = evaluated({config, "--eval.sets={}", "--data.eval=[\"" + file + "\"]"});
    EXPECT_EQ(line.at("sets").at(std::string(name) + "/loss"), alone.at("loss")) << name;
    sum += alone.at("loss").get<double>() * alone.at("trained_tokens").get<double>();
    tokens += alone.at("trained_tokens").get<double>();
  }
  EXPECT_NEAR(line.at("loss").get<double>(), sum / tokens, 1e-9);
  const Json both = evaluated({config});
  EXPECT_EQ(both.at("loss"), line.at("loss"));
  EXPECT_EQ(both.at("sets").at("far").at("loss"), line.at("sets").at("far/loss"));
  const Json beside = evaluated({config, "--data.eval=[\"" + rows + "\"]"});
  EXPECT_EQ(beside.at("loss"), line.at("sets").at("near/loss"));
}

}  // namespace
}  // namespace longshore
