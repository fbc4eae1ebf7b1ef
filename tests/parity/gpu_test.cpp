// Whole runs on GPUs: the cap, the error beyond it, and several ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/child_process.h"
#include "base/errors.h"
#include "device/cuda_device.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/gpu.h"
#include "tests/parity/run_driver.h"
#include "trainer/device/gpu_check.h"

namespace longshore {
namespace {

// Goal: without a GPU device.kind = "cuda" is refused before allocation, and the key is named.
TEST(DeviceKind, CudaWithoutAGpuIsRefused) {
  if (!cuda_devices().empty()) GTEST_SKIP() << "not run: there is a GPU";
  RunDriver run("no-gpu");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.train(joined(RunDriver::golden_arguments("llama"), {"--device.kind=cuda"})), 2);
  const std::string messages = testing::internal::GetCapturedStderr();
  EXPECT_NE(messages.find("device.kind"), std::string::npos) << messages;
}

// Goal: the self-check's child process runs this binary as the program and prints the answer
// of `check gpu`, instead of running all tests.
TEST(SelfCheckChild, IsTheProgramAndNotItsTests) {
  const CudaDevice none;
  const ChildEnd end = run_child(joined(self_check_of(none, 0, "").command, {"--json"}));
  EXPECT_EQ(end.output.find("[=========="), std::string::npos) << end.output;
  if (cuda_devices().empty()) {
    EXPECT_EQ(end.exit_code, 2) << end.text();
    EXPECT_NE(end.output.find("device.kind"), std::string::npos) << end.output;
  } else {
    EXPECT_EQ(end.exit_code, 0) << end.text();
    EXPECT_NE(end.output.find("\"same\""), std::string::npos) << end.output;
  }
}

class GpuMemoryOf : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

// A run's GPU memory stays within its plan.
TEST_P(GpuMemoryOf, StaysWithinThePlan) {
  LONGSHORE_NEEDS_GPU();
  const auto& [golden, compute] = GetParam();
  RunDriver run("gpu-memory");
  EXPECT_EQ(run.train(joined(RunDriver::golden_arguments(golden),
                             {"--device.kind=cuda", "--train.steps=3",
                              "--offload.device_memory=1GiB", "--precision.compute=" + compute})),
            0);
  for (const Json& step : run.metrics("step")) {
    EXPECT_LE(step.at("memory_bytes").at("device_peak").get<int64_t>(), int64_t{1} << 30);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GpuMemoryOf,
                         testing::Combine(testing::ValuesIn(golden_names()),
                                          testing::Values("fp32", "bf16")),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Goal: when LibTorch asks for more than the cap leaves, the run ends with code 4 and the holders.
// The cap is hardly more than the plan's buffers, so the first temporaries exceed it.
TEST(GpuMemory, GoingOverTheCapEndsWithFourAndNamesTheHolders) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  DeviceMemory memory(4 * kMiB, make_cuda_arena(2 * kMiB, 0));
  memory.carve("slot.0", 2 * kMiB);
  const CudaWorkspaceBudget budget(memory, 0);
  try {
    const at::Tensor much = at::empty({64 * kMiB}, at::TensorOptions().device(gpu_tensors(0)));
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(static_cast<int>(error.exit_code()), 4);
    EXPECT_NE(std::string(error.what()).find("slot.0"), std::string::npos) << error.what();
  }
}

// Two GPUs follow the run of one, with NCCL and with gathers on the host.
TEST(GpuRanks, TwoGpusFollowOneByCollectivesAndThroughTheHost) {
  LONGSHORE_NEEDS_GPU();
  if (cuda_devices().size() < 2) GTEST_SKIP() << "not run: one GPU";
  RunDriver alone("gpu-one");
  const Arguments gpu = joined(RunDriver::golden_arguments("llama"), {"--device.kind=cuda"});
  ASSERT_EQ(alone.train(gpu), 0);
  for (const std::string gather : {"collective", "host"}) {
    RunDriver both("gpu-two");
    ASSERT_EQ(both.train_ranks(2, joined(gpu, {"--fsdp.gather=" + gather})), 0) << both.output();
    const auto one = alone.steps("loss"), two = both.steps("loss");
    ASSERT_EQ(one.size(), two.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_LE(std::abs(one[i] - two[i]), 1e-4 * one[i]) << gather << " step " << i + 1;
    }
  }
}

}  // namespace
}  // namespace longshore
