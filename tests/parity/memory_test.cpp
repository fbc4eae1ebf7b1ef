// The device's cap: what a run takes never exceeds its plan, over models, micro-batches and caps.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>

#include "hf/model_directory.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"
#include "trainer/run/run_setup.h"

namespace longshore {
namespace {

// Each model takes every pair of values; two models in a row take all eight combinations.
TEST(DeviceMemory, StaysWithinThePlanOverModelsAndMicroBatches) {
  int model = 0;
  for (const std::string& golden : golden_names()) {
    ++model;
    for (int combination = 0; combination < 8; ++combination) {
      if ((std::popcount(static_cast<unsigned>(combination)) + model) % 2 != 0) continue;
      const std::string micro_batch = (combination & 1) != 0 ? "4" : "1";
      const std::string recompute = (combination & 2) != 0 ? "none" : "unit";
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

// Longshore's reason to be: parameters alone are 8 times what the device may hold, and the run
// keeps the cap.
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

// A head much wider than the batch is long: the gradient of its matrix, summed a piece at a time,
// is what takes the most memory in bf16.
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
