// device.kind = "auto" on a machine with a GPU, and the results of the self-check there.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/parity/run_driver.h"
#include "tests/stand_in_gpu/stand_in.h"
#include "trainer/device/gpu_check.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

const Arguments kAuto = {"--device.kind=auto", "--train.steps=2"};

class GpuAuto : public testing::Test {
 protected:
  ~GpuAuto() override {
    stand_in::break_part("");
    stand_in::set_gpus(gpus_);
  }

 private:
  const std::vector<CudaDevice> gpus_ = cuda_devices();
};

// A GPU that computes correctly passes the self-check.
TEST_F(GpuAuto, ASoundGpuPasses) {
  EXPECT_EQ(check_gpu(0), std::vector<std::string>{});
}

// Goal: a part that computes wrong results is named.
TEST_F(GpuAuto, APartThatIsWrongIsNamed) {
  for (const std::string part : {"copies", "glu"}) {
    stand_in::break_part(part);
    const std::vector<std::string> lines = check_gpu(0);
    ASSERT_FALSE(lines.empty()) << part;
    EXPECT_TRUE(lines.front().starts_with(part)) << lines.front();
  }
}

// Goal: with --json the command prints one document, which agrees with its exit code.
TEST_F(GpuAuto, TheCommandSaysWhatDiffersAsJson) {
  const Ended sound = run_command({"check", "gpu", "--json"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_EQ(Json::parse(sound.out),
            Json({{"gpu", 0}, {"same", true}, {"differences", Json::array()}}));
  stand_in::break_part("glu");
  const Ended broken = run_command({"check", "gpu", "--gpu", "0", "--json"});
  EXPECT_EQ(broken.exit_code, static_cast<int>(ExitCode::kGpu));
  const Json json = Json::parse(broken.out);
  EXPECT_EQ(json.size(), 3u) << json;
  EXPECT_EQ(json.at("gpu"), 0);
  EXPECT_EQ(json.at("same"), false);
  EXPECT_TRUE(json.at("differences").at(0).get<std::string>().starts_with("glu")) << json;
}

// Goal: wrong copies also show in the steps of a tiny model; wrong kernels do not.
TEST_F(GpuAuto, WrongCopiesShowInSteps) {
  stand_in::break_part("copies");
  EXPECT_NE(check_gpu(0).back().find("of a tiny model"), std::string::npos);
}

// A run takes the GPU, and the result of its self-check is cached.
TEST_F(GpuAuto, TakesTheGpuAndRemembersThatItPassed) {
  RunDriver run("gpu-auto", SelfChecks::kOwn);
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama"), kAuto)), 0);
  EXPECT_FALSE(std::filesystem::is_empty(run.directory() + "/cache/gpu"));
  const auto lines = run.metrics("step");
  EXPECT_EQ(lines.size(), 2u);
}

// Goal: train.micro_batch = "auto" is the whole step where it fits on the GPU, and is recorded.
TEST_F(GpuAuto, TakesTheLargestMicroBatchThatFits) {
  RunDriver run("gpu-auto-micro-batch");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama"),
                             {"--device.kind=cuda", "--train.steps=1", "--train.micro_batch=auto",
                              "--train.sequences_per_step=4"})),
            0);
  const std::string config = read_own_file(run.directory() + "/config.toml", kMiB);
  EXPECT_EQ(config_values(config).at("train.micro_batch"), "4");
}

// A run that began on the CPU stays there when it resumes.
TEST_F(GpuAuto, ARunThatBeganOnTheCpuStaysThere) {
  RunDriver run("gpu-auto-cpu");
  const Arguments arguments = RunDriver::golden_arguments("llama");
  const int before = stand_in::prepared();
  ASSERT_EQ(run.train(joined(arguments, {"--train.steps=1"})), 0);
  ASSERT_EQ(run.train(joined(arguments, kAuto)), 0);
  EXPECT_EQ(stand_in::prepared(), before) << "no GPU was looked at";
  EXPECT_EQ(run.steps("loss").size(), 2u);
}

// Goal: too many ranks for the GPUs, or a GPU that is too old, gives exit code 2.
TEST_F(GpuAuto, AGpuThatIsTooOldIsRefused) {
  stand_in::set_gpus({{.name = "Old", .memory_bytes = kGiB, .compute_major = 7}});
  RunDriver run("gpu-auto-old");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.train(joined(RunDriver::golden_arguments("llama"), kAuto)), 2);
  const std::string messages = testing::internal::GetCapturedStderr();
  EXPECT_NE(messages.find("compute capability 7.0"), std::string::npos) << messages;
}

// Goal: a GPU too small for the plan ends the run instead of falling back to the CPU.
TEST_F(GpuAuto, AGpuThatIsTooSmallEndsTheRun) {
  stand_in::set_gpus({{.name = "Small", .memory_bytes = 64 * kMiB, .compute_major = 9}});
  RunDriver run("gpu-auto-small");
  EXPECT_EQ(run.train(joined(RunDriver::golden_arguments("llama"), kAuto)), 3);
}

// Goal: a GPU too small to measure the units gives the error of a plan that does not fit, with the
// keys to lower. The GPU is this small so that few positions are too many: one-token documents run
// one by one here, and the stand-in's allocator searches all blocks.
TEST_F(GpuAuto, AProbeThatDoesNotFitIsAPlanThatDoesNotFit) {
  const fakes::ShapesOnly fast;
  stand_in::set_gpus(
      {{.name = "Small", .memory_bytes = 4 * kMiB, .compute_major = 9, .processors = 132}});
  RunDriver run("gpu-auto-probe");
  testing::internal::CaptureStderr();
  const int code =
      run.train(joined(RunDriver::golden_arguments("llama"),
                       {"--device.kind=cuda", "--precision.compute=bf16", "--data.max_tokens=256",
                        "--train.micro_batch=8", "--train.sequences_per_step=8"}));
  const std::string messages = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 3) << messages;
  for (const char* text :
       {"more than the device has", "train.micro_batch = ", "data.max_tokens = "}) {
    EXPECT_NE(messages.find(text), std::string::npos) << text << "\n" << messages;
  }
  EXPECT_EQ(messages.find("1024.0 TiB"), std::string::npos) << messages;
}

}  // namespace
}  // namespace longshore
