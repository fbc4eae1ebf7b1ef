// The cap of device memory: no run takes more than its plan, over models, batches and caps.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "hf/model_directory.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"
#include "trainer/setup/run_setup.h"

namespace longshore {
namespace {

// Runs stay within the plan; two successive models take all eight combinations of values.
TEST(DeviceMemory, StaysWithinThePlanOverModelsAndMicroBatches) {
  int model = 0;
  for (const std::string& golden : golden_names()) {
    ++model;
    for (int combination = 0; combination < 8; ++combination) {
      if ((std::popcount(static_cast<unsigned>(combination)) + model) % 2 != 0) continue;
      const std::string micro_batch = (combination & 1) != 0 ? "4" : "1";
      const std::string again = model % 3 == 0 ? "except-mlp" : "unit";
      const std::string recompute = (combination & 2) != 0 ? "none" : again;
      const std::string compute = (combination & 4) != 0 ? "bf16" : "fp32";
      RunDriver run("memory");
      std::vector<std::string> arguments = RunDriver::golden_arguments(golden);
      arguments.insert(
          arguments.end(),
          {"--train.steps=3", "--train.sequences_per_step=4", "--train.micro_batch=" + micro_batch,
           "--fsdp.recompute=" + recompute, "--precision.compute=" + compute});
      EXPECT_EQ(run.train(arguments), 0)
          << golden << " micro_batch " << micro_batch << " " << recompute << " " << compute;
      run.expect_within_plan();
    }
  }
}

// A cap below the plan ends with exit code 3.
TEST(DeviceMemory, RefusesACapBelowThePlanWithCodeThree) {
  RunDriver run("too-small");
  std::vector<std::string> arguments = RunDriver::golden_arguments("llama");
  arguments.insert(arguments.end(), {"--offload.device_memory=16KiB"});
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.train(arguments), 3);
  const std::string messages = testing::internal::GetCapturedStderr();
  EXPECT_NE(messages.find("offload.device_memory is 16.0 KiB"), std::string::npos) << messages;
  EXPECT_NE(messages.find("data.max_tokens"), std::string::npos) << messages;
}

// A model whose parameters are 8 times the device's memory trains within the cap.
TEST(DeviceMemory, TrainsAModelEightTimesLargerThanTheCap) {
  const std::string directory = scratch_directory("deep-model");
  ASSERT_EQ(run_command_line({"init-model", "--preset", "tiny-deep", directory}), 0);
  RunDriver run("larger");
  std::vector<std::string> arguments = RunDriver::golden_arguments("llama");
  const Bytes model_bytes =
      ModelDirectory::open(directory).weight_bytes();  // fp32, as the device reads them
  const Bytes cap = model_bytes / 8;
  arguments.insert(arguments.end(),
                   {"--model.path=\"" + directory + "\"", "--data.max_tokens=32",
                    "--train.sequences_per_step=1", "--train.steps=8", "--optimizer.lr=1e-3",
                    "--offload.device_memory=\"" + std::to_string(cap) + "B\""});
  ASSERT_EQ(run.train(arguments), 0);
  run.expect_within_plan();
  for (const Json& step : run.metrics("step")) {
    EXPECT_LE(step.at("memory_bytes").at("device_peak").get<int64_t>(), cap);
  }
  std::filesystem::remove_all(directory);
}

// Returns a directory with only the config of a two-layer llama of this width.
std::string wide_model(int64_t hidden) {
  const std::string directory = scratch_directory("wide-" + std::to_string(hidden));
  std::filesystem::create_directories(directory);
  const Json config = {{"model_type", "llama"},
                       {"vocab_size", 512},
                       {"hidden_size", hidden},
                       {"intermediate_size", 2 * hidden},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", hidden / 64},
                       {"num_key_value_heads", hidden / 64},
                       {"max_position_embeddings", 128}};
  write_file_durably(directory + "/config.json", config.dump());
  return directory;
}

// Runs with few positions and wide matrices keep the plan: backward then holds the gradients of the
// parameters and the temporaries of adding them to fp32 sums.
TEST(DeviceMemory, KeepsThePlanWhereMicroBatchesAreShortAndTheModelWide) {
  for (const auto& [hidden, positions] : {std::pair{512, 16}, {512, 64}, {768, 32}}) {
    const std::string directory = wide_model(hidden);
    RunDriver run("short-and-wide");
    std::vector<std::string> arguments = RunDriver::golden_arguments("llama");
    arguments.insert(
        arguments.end(),
        {"--model.path=\"" + directory + "\"", "--model.init=random", "--data.overlength=truncate",
         "--data.max_tokens=" + std::to_string(positions), "--train.sequences_per_step=1",
         "--train.steps=1", "--precision.compute=bf16"});
    EXPECT_EQ(run.train(arguments), 0) << hidden << " wide, " << positions << " positions";
    run.expect_within_plan();
    std::filesystem::remove_all(directory);
  }
}

// Writes pairs of token rows, and the same tokens as two rows of SFT for each pair.
void write_pairs(const std::string& pairs, const std::string& rows) {
  std::ofstream pair_file(pairs), row_file(rows);
  for (int i = 0; i < 8; ++i) {
    const auto tokens = [&](int count, int from) {
      Json list = Json::array();
      for (int k = 0; k < count; ++k) list.push_back(4 + (from + 7 * k + 31 * i) % 500);
      return list;
    };
    const Json prompt = tokens(24, 0), chosen = tokens(40, 100), rejected = tokens(40, 200);
    pair_file << Json{{"prompt_ids", prompt}, {"chosen_ids", chosen}, {"rejected_ids", rejected}}
              << "\n";
    for (const Json& answer : {chosen, rejected}) {
      Json ids = prompt, labels = Json::array();
      for (size_t k = 0; k < prompt.size(); ++k) labels.push_back(-100);
      ids.insert(ids.end(), answer.begin(), answer.end());
      labels.insert(labels.end(), answer.begin(), answer.end());
      row_file << Json{{"input_ids", ids}, {"labels", labels}} << "\n";
    }
  }
}

// DPO with all parameters takes at most 2 % more memory than SFT with the same tokens, by the plan
// and measured.
TEST(DeviceMemory, OfDpoIsThatOfSftWithTheSameTokens) {
  const std::string directory = wide_model(128);
  write_pairs(directory + "/pairs.jsonl", directory + "/rows.jsonl");
  const auto peaks = [&](const std::string& rows, const Arguments& more) {
    RunDriver run("peaks");
    const Arguments arguments = joined(
        {"--model.path=\"" + directory + "\"", "--model.init=random", "--device.kind=cpu",
         "--data.train=" + directory + "/" + rows, "--data.max_tokens=64", "--train.steps=2"},
        more);
    EXPECT_EQ(run.train(arguments), 0) << rows;
    run.expect_within_plan();
    const Json plan = run.plan(1);
    std::vector<double> bytes = {plan.at("device").at("total_bytes").get<double>(),
                                 plan.at("host").at("total_bytes").get<double>()};
    for (const std::string key : {"device_peak", "host_pinned"}) {
      bytes.push_back(run.metrics("step").back().at("memory_bytes").at(key).get<double>());
    }
    return bytes;
  };
  const std::vector<double> sft =
      peaks("rows.jsonl", {"--train.sequences_per_step=8", "--train.micro_batch=8"});
  const std::vector<double> dpo = peaks(
      "pairs.jsonl", {"--train.sequences_per_step=4", "--train.micro_batch=4", "--train.loss=dpo"});
  for (size_t i = 0; i < sft.size(); ++i) {
    EXPECT_GT(sft[i], 0) << i;
    EXPECT_LE(dpo[i], 1.02 * sft[i]) << i;
  }
  std::filesystem::remove_all(directory);
}

// A run whose head is much wider than the batch keeps the plan: the gradient of its matrix, summed
// in pieces, takes the most memory in bf16.
TEST(DeviceMemory, KeepsThePlanWhereTheHeadIsWiderThanTheBatch) {
  const std::string directory = scratch_directory("wide-head-model");
  ASSERT_EQ(run_command_line({"init-model", "--preset", "small-llama", directory}), 0);
  RunDriver run("wide-head");
  std::vector<std::string> arguments = RunDriver::golden_arguments("llama");
  arguments.insert(arguments.end(),
                   {"--model.path=\"" + directory + "\"", "--data.max_tokens=64",
                    "--train.sequences_per_step=1", "--train.steps=2", "--precision.compute=bf16"});
  EXPECT_EQ(run.train(arguments), 0);
  run.expect_within_plan();
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace longshore
