// Weights that are not finite, and runs that train nothing. Goal: neither ends as a success.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "hf/safetensors_reader.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

class NonFinite : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(run_.directory());
    fs::copy(golden_directory("llama-tied"), model());
  }
  std::string model() const { return run_.directory() + "/model"; }
  Arguments arguments() const {
    return joined(RunDriver::golden_arguments("llama-tied"),
                  {"--train.steps=3", "--checkpoint.export=end", "--model.path=\"" + model() + "\"",
                   "--run.dir=\"" + run_.directory() + "\"",
                   "--data.cache=\"" + run_.directory() + "/cache\""});
  }
  // Overwrites the first `elements` elements of an F32 tensor, all of them for -1.
  void poison(const std::string& tensor, int64_t elements, float value) const {
    const std::string path = model() + "/model.safetensors";
    Bytes begin = 0;
    int64_t count = 0;
    {
      const SafetensorsFile file = SafetensorsFile::open(path);
      for (const TensorInfo& info : file.tensors()) {
        if (info.name != tensor) continue;
        ASSERT_EQ(info.dtype, TensorDType::kF32);
        begin = info.file_begin;
        count = elements < 0 ? info.elements() : elements;
      }
    }
    ASSERT_GT(count, 0) << tensor;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(begin);
    for (int64_t i = 0; i < count; ++i) {
      file.write(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  int call(const std::string& command, const Arguments& more = {}) {
    testing::internal::CaptureStderr();
    const int exit_code = run_command_line(
        joined(joined({command, run_.directory() + "/empty.toml"}, arguments()), more));
    text_ = testing::internal::GetCapturedStderr();
    return exit_code;
  }
  void expect_said(const std::string& words) const {
    EXPECT_NE(text_.find(words), std::string::npos) << words << " in " << text_;
  }

  const RunDriver run_{"non-finite"};
  std::string text_;
};

constexpr const char* kMatrix = "model.layers.0.mlp.up_proj.weight";

TEST_F(NonFinite, WeightsWithoutAFiniteValueAreRefused) {
  poison(kMatrix, -1, std::numeric_limits<float>::quiet_NaN());
  std::ofstream(run_.directory() + "/empty.toml").close();
  EXPECT_EQ(call("train"), 5);
  expect_said(kMatrix);
  expect_said("every step would be skipped");
}

TEST_F(NonFinite, ARunWithoutOneAppliedStepIsNoSuccess) {
  poison(kMatrix, 1, std::numeric_limits<float>::infinity());
  std::ofstream(run_.directory() + "/empty.toml").close();
  EXPECT_EQ(call("train"), 7);
  expect_said(std::string("1 tensor: '") + kMatrix + "'");
  expect_said("none of the run's 3 steps was applied");
  EXPECT_FALSE(fs::exists(run_.directory() + "/hf")) << "nothing to export";
  EXPECT_EQ(read_json_file(run_.directory() + "/run.json", JsonLimits{}).at("exit_code"), 7);
}

TEST_F(NonFinite, WeightsAreExportedOnlyWhereToldTo) {
  poison(kMatrix, 1, std::numeric_limits<float>::quiet_NaN());
  std::ofstream(run_.directory() + "/empty.toml").close();
  const std::string to = run_.directory() + "/out";
  EXPECT_EQ(call("export", {"--from", "model", "--to", to}), 5);
  expect_said(kMatrix);
  expect_said("--allow-nonfinite");
  EXPECT_FALSE(fs::exists(to));
  EXPECT_EQ(call("export", {"--from", "model", "--to", to, "--allow-nonfinite"}), 0) << text_;
  EXPECT_TRUE(fs::exists(to + "/model.safetensors"));
}

TEST_F(NonFinite, AModelWithEverythingFrozenIsRefused) {
  std::ofstream(run_.directory() + "/empty.toml").close();
  EXPECT_EQ(call("train", {"--train.freeze=[\"*\"]"}), 2);
  expect_said("every parameter is frozen");
}

}  // namespace
}  // namespace longshore
