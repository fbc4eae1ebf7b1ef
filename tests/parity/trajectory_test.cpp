// Whole runs of every family agree with transformers and torch.optim.AdamW.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/fakes/gpu.h"
#include "tests/fakes/sketch.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

class Trajectory : public testing::TestWithParam<std::string> {};

// The contribution of a key bias to a query's scores nearly cancels in the softmax, so its
// gradients are mostly rounding, which Adam enlarges.
double weight_tolerance(const std::string& name) {
  const bool key_bias = name.ends_with("k_proj.bias") || name.ends_with("c_attn.bias");
  return key_bias ? 2e-4 : 1e-4;
}

// Some runs amplify rounding: in olmo3's and phi3-long's transformers in fp32 differs from itself
// in fp64 by 6.8e-4 and 6.8e-5, in gemma4-e2b's by 3.7e-5, in qwen3_5_text's by 4e-5 from a run
// whose weights begin 1e-7 away. The others are within 1.7e-5 (trajectory_spread.py). In
// gemma4_text-shared's transformers in fp32 is 1.1e-3 from fp64 and Longshore 8.8e-4, on the other
// side.
double norm_tolerance(const std::string& golden) {
  if (golden == "gemma4_text-shared") return 3e-3;
  if (golden == "olmo3" || golden == "qwen3_5_text") return 1e-3;
  return golden == "phi3-long" || golden == "gemma4-e2b" ? 3e-4 : 1e-4;
}

// Returns the losses as transformers reports them, with the balance loss where config.json asks.
std::vector<double> whole_losses(const RunDriver& run, const std::string& golden) {
  std::vector<double> losses = run.steps("loss");
  const Json config = read_json_file(golden_directory(golden) + "/config.json", JsonLimits{});
  if (!config.value("output_router_logits", false)) return losses;
  const std::vector<double> balance = run.steps("aux_loss");
  for (size_t i = 0; i < losses.size(); ++i) {
    losses[i] += config.at("router_aux_loss_coef").get<double>() * balance.at(i);
  }
  return losses;
}

// Runs 20 steps in fp32. Losses agree within 3e-5 relative per step and final weights within 1e-4
// per tensor, because both sides sum in other orders and Adam's division by small second moments
// enlarges that.
void expect_golden(const std::string& golden, const std::string& kind,
                   const std::vector<std::string>& more) {
  RunDriver run("trajectory-" + golden + "-" + kind);
  std::vector<std::string> arguments = RunDriver::golden_arguments(golden);
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Json expected = golden_facts(golden).at("runs").at(kind);
  arguments.push_back("--train.max_grad_norm=" + expected.at("max_grad_norm").dump());
  ASSERT_EQ(run.train(arguments), 0);

  const std::vector<double> losses = whole_losses(run, golden);
  const std::vector<double> norms = run.steps("grad_norm");
  ASSERT_EQ(losses.size(), expected.at("loss").size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const double loss = expected.at("loss")[i].get<double>();
    const double norm = expected.at("grad_norm")[i].get<double>();
    EXPECT_LE(std::abs(losses[i] - loss), 3e-5 * loss) << golden << " step " << i + 1;
    EXPECT_LE(std::abs(norms[i] - norm), norm_tolerance(golden) * norm)
        << golden << " step " << i + 1;
  }
  const auto tensors = read_sketches(golden_directory(golden) + "/golden_sketches.json");
  const auto state = run.state();
  size_t compared = 0;
  for (const auto& [name, sketch] : tensors) {
    if (name.rfind(kind + ".", 0) != 0) continue;
    const auto mine = state.find(name.substr(kind.size() + 1) + ".master");
    ASSERT_NE(mine, state.end()) << name;
    EXPECT_LE(relative_error(mine->second, sketch), weight_tolerance(name))
        << golden << " " << name;
    ++compared;
  }
  EXPECT_EQ(compared * 3, state.size());
}

// The run follows transformers without clipping.
TEST_P(Trajectory, FollowsTransformersWithoutClipping) {
  expect_golden(GetParam(), "free", {});
}

// The run follows transformers with clipping.
TEST_P(Trajectory, FollowsTransformersWithClipping) {
  expect_golden(GetParam(), "clip", {});
}

// The run follows transformers with all rows of a step in one micro-batch.
TEST_P(Trajectory, FollowsTransformersInOneMicroBatch) {
  expect_golden(GetParam(), "clip", {"--train.micro_batch=3"});
}

INSTANTIATE_TEST_SUITE_P(Families, Trajectory, testing::ValuesIn(golden_names()), golden_test_name);
INSTANTIATE_TEST_SUITE_P(Experts, Trajectory, testing::ValuesIn(expert_golden_names()),
                         golden_test_name);
// These files hold the experts in MXFP4.
INSTANTIATE_TEST_SUITE_P(Mxfp4, Trajectory, testing::Values("gpt_oss-mxfp4"), golden_test_name);

// GPU runs have fp32 products without TF32, so the tolerances are the same.
class GpuTrajectory : public testing::TestWithParam<std::string> {};

// A run on a GPU follows transformers, with and without clipping.
TEST_P(GpuTrajectory, FollowsTransformersWithClipping) {
  LONGSHORE_NEEDS_GPU();
  expect_golden(GetParam(), "clip", {"--device.kind=cuda"});
  expect_golden(GetParam(), "free", {"--device.kind=cuda", "--fsdp.recompute=none"});
}

// The tolerance of bf16 against transformers' fp32 is 1.5 % at the first 15 steps: 1.02 % was
// measured on a Xeon with AMX (gemma4_text-shared), less on other CPUs. By the 20th rounding grows
// to 2 % for phi3-long on the CPU device too. If rounding changes an expert's
// tokens, the loss jumps: 1.2 % at the first 15 steps and 2 % by the 20th on the CPU device.
double bf16_tolerance(const std::string& golden, size_t step) {
  const bool experts = std::ranges::count(expert_golden_names(), golden) > 0;
  if (experts) return step < 15 ? 0.03 : 0.06;
  return step < 15 ? 0.015 : 0.04;
}

// A run on a GPU in bf16 stays close to transformers in fp32.
TEST_P(GpuTrajectory, StaysCloseInBf16) {
  LONGSHORE_NEEDS_GPU();
  RunDriver run("gpu-bf16-" + GetParam());
  const Json expected = golden_facts(GetParam()).at("runs").at("clip");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments(GetParam()),
                             {"--device.kind=cuda", "--precision.compute=bf16",
                              "--train.max_grad_norm=" + expected.at("max_grad_norm").dump()})),
            0);
  const std::vector<double> losses = whole_losses(run, GetParam());
  ASSERT_EQ(losses.size(), expected.at("loss").size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const double loss = expected.at("loss")[i].get<double>();
    EXPECT_LE(std::abs(losses[i] - loss), bf16_tolerance(GetParam(), i) * loss)
        << GetParam() << " step " << i + 1;
  }
  run.expect_within_plan();
}

INSTANTIATE_TEST_SUITE_P(Families, GpuTrajectory, testing::ValuesIn(golden_names()),
                         golden_test_name);
INSTANTIATE_TEST_SUITE_P(Experts, GpuTrajectory, testing::ValuesIn(expert_golden_names()),
                         golden_test_name);

}  // namespace
}  // namespace longshore
