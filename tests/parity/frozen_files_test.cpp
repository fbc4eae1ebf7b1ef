// Runs whose frozen model stays in its own files: the bits of the host tier whatever the files'
// dtype, the planned bytes, no change of the files, and an end where a file changes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/fakes/command_run.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/launched_ranks.h"
#include "tests/parity/partly_resident.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

Arguments adapters_over(const EditedModel& model) {
  return joined(RunDriver::golden_arguments("llama"),
                {"--model.path=\"" + model.directory() + "\"", "--adapter.kind=lora",
                 "--adapter.r=4", "--train.steps=4", "--train.sequences_per_step=4"});
}

// The file's bytes go straight to the slot, or are converted as loading converts them.
TEST(FrozenFiles, GiveTheBitsOfTheHostTierInEveryDtype) {
  EditedModel model("llama");
  for (const TensorDType stored : {TensorDType::kF32, TensorDType::kBF16}) {
    model.write(stored);
    for (const std::string compute : {"fp32", "bf16"}) {
      const Arguments all = joined(adapters_over(model), {"--precision.compute=" + compute});
      RunDriver host("frozen-host"), files("frozen-files");
      ASSERT_EQ(host.train(all), 0);
      ASSERT_EQ(files.train(partly_resident(host, all)), 0);
      EXPECT_EQ(files.steps("loss"), host.steps("loss")) << compute << name_of(stored);
      EXPECT_TRUE(files.state() == host.state()) << compute << name_of(stored);
      const Json plan = files.plan(1);
      const int64_t planned = plan.at("step").at("files_read_bytes").get<int64_t>();
      EXPECT_GT(planned, 0);
      EXPECT_GT(plan.at("host").at("resident_frozen_bytes"), 0);
      const std::vector<Json> steps = files.metrics("step");
      EXPECT_GT(steps.at(0).at("bytes").at("file_read"), planned) << "resident units are read once";
      for (size_t i = 1; i < steps.size(); ++i) {
        EXPECT_EQ(steps[i].at("bytes").at("file_read"), planned) << compute << name_of(stored);
        EXPECT_EQ(steps[i].at("bytes").at("drive_write"), 0);
      }
    }
  }
}

// Frozen parameters of a run without adapters stay in the files too, and its export has all values.
TEST(FrozenFiles, ServeARunWithFrozenParameters) {
  EditedModel model("llama");
  model.write();
  const Arguments all = joined(RunDriver::golden_arguments("llama"),
                               {"--model.path=\"" + model.directory() + "\"",
                                "--train.freeze=[\"model.layers.*\"]", "--train.steps=3"});
  RunDriver host("freeze-host"), files("freeze-files");
  ASSERT_EQ(host.train(all), 0);
  ASSERT_EQ(files.train(partly_resident(host, all)), 0);
  EXPECT_TRUE(files.state() == host.state());
  std::map<std::string, std::vector<float>> exported[2];
  for (size_t i = 0; i < 2; ++i) {
    const std::string to = scratch_directory("freeze-export");
    const std::string config = (i == 0 ? host : files).directory() + "/config.toml";
    ASSERT_EQ(run_command({"export", config, "--to", to}).exit_code, 0);
    exported[i] = read_tensors(to + "/model.safetensors");
    fs::remove_all(to);
  }
  EXPECT_FALSE(exported[0].empty());
  EXPECT_TRUE(exported[0] == exported[1]);
}

// Nothing is written beside the model, and its directory may be read-only.
TEST(FrozenFiles, LeaveTheModelAsItIs) {
  EditedModel model("llama");
  model.write();
  const std::map<std::string, std::string> before = record_of(model.directory());
  const std::string weights = model.directory() + "/model.safetensors";
  const auto written = fs::last_write_time(weights);
  fs::permissions(weights, fs::perms::owner_read);
  fs::permissions(model.directory(), fs::perms::owner_read | fs::perms::owner_exec);
  RunDriver run("frozen-readonly");
  EXPECT_EQ(run.train(joined(adapters_over(model), {"--offload.parameters=files"})), 0);
  fs::permissions(model.directory(), fs::perms::owner_all);
  EXPECT_EQ(record_of(model.directory()), before);
  EXPECT_EQ(fs::last_write_time(weights), written);
}

// Two ranks read their own parts and train what two ranks of the host tier train.
TEST(FrozenFiles, ServeEveryRankItsPart) {
  EditedModel model("llama");
  model.write();
  RunDriver host("frozen-ranks-host"), files("frozen-ranks-files");
  ASSERT_EQ(host.train_ranks(2, adapters_over(model)), 0) << host.output();
  ASSERT_EQ(files.train_ranks(2, partly_resident(host, adapters_over(model), 2)), 0)
      << files.output();
  EXPECT_EQ(files.steps("loss"), host.steps("loss"));
  EXPECT_TRUE(files.state() == host.state());
}

// The end names the file and a tensor. The run goes on from its checkpoint once the file is
// restored.
TEST(FrozenFiles, EndTheRunWhereAFileChanges) {
  for (const bool cut : {false, true}) {
    EditedModel model("llama");
    model.write();
    const std::string weights = model.directory() + "/model.safetensors";
    const std::string bytes = record_of(model.directory()).at("model.safetensors");
    RunDriver run("frozen-changed");
    const Arguments all =
        joined(adapters_over(model), {"--offload.parameters=files", "--checkpoint.every_steps=0"});
    ASSERT_EQ(run.train(joined(all, {"--train.steps=2"})), 0);
    Launched endless(run, 1, partly_resident(run, joined(all, {"--train.steps=1000000"})));
    ASSERT_TRUE(endless.wait_for_steps(3)) << run.output();
    if (cut) {
      fs::resize_file(weights, bytes.size() / 2);
    } else {
      std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end).put('x');
    }
    ASSERT_TRUE(endless.wait_for_end()) << run.output();
    EXPECT_EQ(endless.exit_code(), 5) << run.output();
    const std::string said = run.output();
    EXPECT_NE(said.find(weights + ": tensor '"), std::string::npos) << said;
    std::ofstream(weights, std::ios::binary) << bytes;
    EXPECT_EQ(run.train(joined(all, {"--train.steps=4"})), 0);
  }
}

// A model that changed between two processes ends the second one before an update, with the name of
// a tensor; the run goes on with the restored file, and one that starts over takes the new one.
TEST(FrozenFiles, ARunIsResumedOnlyOverTheValuesItBeganWith) {
  EditedModel model("llama");
  model.write();
  const std::string weights = model.directory() + "/model.safetensors";
  const std::string bytes = record_of(model.directory()).at("model.safetensors");
  RunDriver host("frozen-sums-host"), run("frozen-sums");
  ASSERT_EQ(host.train(adapters_over(model)), 0);
  const Arguments all = partly_resident(host, adapters_over(model));
  ASSERT_EQ(run.train(joined(all, {"--train.steps=2"})), 0);
  const std::map<std::string, std::string> before = record_of(run.directory() + "/checkpoints");
  std::string changed = bytes;
  changed[bytes.size() / 2] = static_cast<char>(changed[bytes.size() / 2] ^ 1);
  std::ofstream(weights, std::ios::binary) << changed;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.train(all), 6);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find(weights + ": tensor '"), std::string::npos) << said;
  EXPECT_EQ(record_of(run.directory() + "/checkpoints"), before);
  std::ofstream(weights, std::ios::binary) << bytes;
  ASSERT_EQ(run.train(all), 0);
  EXPECT_TRUE(run.state() == host.state());
  std::ofstream(weights, std::ios::binary) << changed;
  EXPECT_EQ(run.train(joined(all, {"--checkpoint.resume=never"})), 0);
}

// Kills a run over a base in its files with SIGKILL, each time a few steps further, and expects the
// weights and losses of a run in host memory that nothing disturbed.
void expect_same_bits_after(int kills) {
  EditedModel model("llama");
  model.write();
  RunDriver run("killed-files"), unbroken("killed-host");
  const Arguments all = joined(adapters_over(model), {"--checkpoint.every_steps=3"});
  ASSERT_EQ(unbroken.train(all), 0);
  const Arguments files = partly_resident(unbroken, all);
  for (int kill = 0; kill < kills; ++kill) {
    Launched killed(run, 1, joined(files, {"--train.steps=1000000"}));
    ASSERT_TRUE(killed.wait_for_steps(1 + static_cast<size_t>(kill * 7 % 5))) << run.output();
  }
  const std::string steps = "--train.steps=" + std::to_string(run.steps("loss").size() + 2);
  ASSERT_EQ(run.train(joined(files, {steps})), 0);
  ASSERT_EQ(unbroken.train(joined(all, {steps})), 0);
  EXPECT_EQ(run.steps("loss"), unbroken.steps("loss"));
  EXPECT_TRUE(run.state() == unbroken.state());
}

TEST(FrozenFiles, GiveTheSameBitsAfterKills) {
  expect_same_bits_after(3);
}

TEST(LongFrozenFiles, GiveTheSameBitsAfterFortyKills) {
  expect_same_bits_after(40);
}

}  // namespace
}  // namespace longshore
