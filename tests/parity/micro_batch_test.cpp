// train.micro_batch = "auto" in whole runs. Goal: the number is chosen once; resumes keep it, so
// that a run that stopped has the bits of one that did not.
#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

constexpr const char* kAuto = "--train.micro_batch=auto";

Arguments golden(const Arguments& more) {
  return joined(RunDriver::golden_arguments("llama"), more);
}

std::string recorded(const RunDriver& run) {
  const std::string file = run.directory() + "/config.toml";
  return config_values(read_own_file(file, kMiB))["train.micro_batch"];
}

// A run that says "auto" trains with the number that it records.
TEST(MicroBatch, IsRecordedAsANumber) {
  RunDriver run("micro-batch-new");
  ASSERT_EQ(run.train(golden({"--train.steps=1", kAuto})), 0);
  EXPECT_EQ(recorded(run), "1");
  EXPECT_EQ(run.steps("loss").size(), 1u);
}

// Goal: a resumed run keeps the number that it began with, and its bits.
TEST(MicroBatch, IsKeptByResumes) {
  RunDriver straight("micro-batch-straight"), resumed("micro-batch-resumed");
  ASSERT_EQ(straight.train(golden({"--train.steps=4", "--train.micro_batch=3"})), 0);
  ASSERT_EQ(resumed.train(golden({"--train.steps=2", "--train.micro_batch=3"})), 0);
  ASSERT_EQ(resumed.train(golden({"--train.steps=4", kAuto})), 0);
  EXPECT_EQ(recorded(resumed), "3");
  EXPECT_EQ(resumed.state(), straight.state());
}

// Goal: a run from another run's checkpoint keeps that run's number; a fresh start chooses anew.
TEST(MicroBatch, ComesFromTheCheckpointOfAnotherRun) {
  RunDriver first("micro-batch-first"), second("micro-batch-second");
  ASSERT_EQ(first.train(golden({"--train.steps=2", "--train.micro_batch=3"})), 0);
  const std::string checkpoint = first.directory() + "/checkpoints/step-00000002";
  ASSERT_EQ(second.train(
                golden({"--train.steps=3", kAuto, "--checkpoint.resume=\"" + checkpoint + "\""})),
            0);
  EXPECT_EQ(recorded(second), "3");
  ASSERT_EQ(second.train(golden({"--train.steps=1", kAuto, "--checkpoint.resume=never"})), 0);
  EXPECT_EQ(recorded(second), "1");
}

// Goal: all ranks train with the number of the first, which alone need see the run's directory.
TEST(MicroBatch, IsTheSameOnAllRanks) {
  RunDriver run("micro-batch-ranks");
  ASSERT_EQ(run.train_ranks(2, golden({"--train.steps=1", kAuto})), 0) << run.output();
  EXPECT_EQ(recorded(run), "1");
  RunDriver kept("micro-batch-kept");
  ASSERT_EQ(kept.train(golden({"--train.steps=1", "--train.micro_batch=2"})), 0);
  ASSERT_EQ(kept.train_ranks(2, golden({"--train.steps=2", kAuto})), 0) << kept.output();
  EXPECT_EQ(recorded(kept), "2");
}

// Goal: the other commands read a run file that says "auto", and `plan` names the number.
TEST(MicroBatch, IsReadByOtherCommands) {
  const std::string directory = scratch_directory("micro-batch-use");
  const std::string rows = golden_directory("llama") + "/train.jsonl";
  const std::string file = directory + "/empty.toml";
  make_directories(directory);
  write_output_file(file, "");
  const Arguments keys =
      golden({kAuto, "--data.eval=[\"" + rows + "\"]", "--data.cache=\"" + directory + "/cache\"",
              "--run.dir=\"" + directory + "/run\""});
  const auto ended = [&](const Arguments& command, const Arguments& more = {}) {
    return run_command(joined(joined(joined({command.front(), file}, keys), more),
                              {command.begin() + 1, command.end()}));
  };
  const Ended eval = ended({"eval", "--from", "model"});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
  const Ended plan = ended({"plan"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.err.find("train.micro_batch: 1, "), std::string::npos) << plan.err;
  const Ended there = ended({"plan", "--machine", "rtx-4090"}, {"--device.kind=cuda"});
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_NE(there.err.find(", the largest that fits"), std::string::npos) << there.err;
  const Ended search =
      ended({"plan", "--machine", "cpu-desktop-ddr5", "--search", "--save", directory + "/found"});
  EXPECT_EQ(search.exit_code, 0) << search.err;
  const auto saved = config_values(read_own_file(directory + "/found/plan-1.toml", kMiB));
  EXPECT_NE(saved.at("train.micro_batch"), "\"auto\"");
}

}  // namespace
}  // namespace longshore
