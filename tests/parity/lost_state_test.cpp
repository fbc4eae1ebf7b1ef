// State on drives that is damaged beyond its redundancy. Goal: if a run's directory records
// committed steps that neither drives nor checkpoints hold, the run is refused, and nothing is cut,
// replaced or overwritten before the user allows it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/parity/launched_ranks.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

Arguments base(int steps) {
  return joined(RunDriver::golden_arguments("llama-tied"),
                {"--train.steps=" + std::to_string(steps)});
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void put_at(const std::string& path, std::streamoff offset, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file << bytes;
}

// LostState: a run of six steps on two drives without checkpoints, so only the drives have step 6.
class LostState : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(run_.train(on_drives(6)), 0);
    fs::remove_all(run_.directory() + "/checkpoints");
    for (const std::string& path : kept()) whole_[path] = read(path);
  }

  Arguments on_drives(int steps) const {
    return joined(base(steps), {"--offload.optimizer=nvme",
                                "--offload.nvme=[\"" + drive(0) + "\", \"" + drive(1) + "\"]"});
  }
  std::string drive(int index) const { return run_.directory() + "/drive" + std::to_string(index); }
  std::string state(int index) const { return drive(index) + "/rank-0000.state"; }
  std::string metrics() const { return run_.directory() + "/metrics.jsonl"; }
  std::string status() const { return run_.directory() + "/run.json"; }
  std::string key() const { return run_.directory() + "/state_key"; }
  std::vector<std::string> kept() const { return {state(0), state(1), metrics(), key(), status()}; }
  std::string zeros_for(int drive) const {
    return std::string(whole_.at(state(drive)).size(), '\0');
  }
  void restore() const {
    for (const auto& [path, bytes] : whole_) write(path, bytes);
    fs::remove_all(run_.directory() + "/checkpoints");
  }

  // Expects that the run is refused with these words and that the disk is unchanged.
  void expect_refused(const std::vector<std::string>& words, const Arguments& arguments) const {
    std::map<std::string, std::string> before;
    for (const std::string& path : kept()) {
      if (fs::exists(path)) before[path] = read(path);
    }
    testing::internal::CaptureStderr();
    const int exit_code = run_.train(arguments);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(exit_code, 6) << text;
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
    }
    for (const auto& [path, bytes] : before) EXPECT_TRUE(read(path) == bytes) << path;
  }
  void expect_refused(const std::vector<std::string>& words) const {
    expect_refused(words, on_drives(8));
  }

  const RunDriver run_{"lost-state"};
  std::map<std::string, std::string> whole_;
};

constexpr std::streamoff kSecondManifest = 16 << 10;

// The run is refused whatever the damage.
TEST_F(LostState, IsRefusedWhateverTheDamage) {
  for (const int drive : {0, 1}) write(state(drive), zeros_for(drive));
  expect_refused({"metrics.jsonl", "step 6 was committed", "checkpoint.resume = \"never\""});
  restore();
  for (const int drive : {0, 1}) fs::remove(state(drive));
  expect_refused({"step 6 was committed"});
  EXPECT_FALSE(fs::exists(state(0))) << "none is made";
  restore();
  write(state(1), zeros_for(1));  // one of two drives
  expect_refused({"commit 6 was reached"});
  restore();
  for (const int drive : {0, 1}) {
    put_at(state(drive), 200, "x");
    put_at(state(drive), kSecondManifest + 200, "x");
  }
  expect_refused({"step 6 was committed"});
  restore();
  for (const int drive : {0, 1}) fs::resize_file(state(drive), 40 << 10);
  expect_refused({"after step 6", "cut off"});
  restore();
  for (const int drive : {0, 1}) {  // both versions of all data
    put_at(state(drive), 64 << 10, std::string(whole_.at(state(drive)).size() - (64 << 10), 'x'));
  }
  expect_refused({"cannot be recovered"});
  restore();
  write(state(0), std::string(100, 'u') + zeros_for(0).substr(100));
  expect_refused({state(0), "no run wrote it"});
  restore();
  EXPECT_EQ(run_.train(on_drives(8)), 0) << "as it was";
}

// Each of the three files of a run suffices to remember committed steps.
TEST_F(LostState, IsRememberedByEveryFileOfTheRun) {
  for (const int drive : {0, 1}) write(state(drive), zeros_for(drive));
  fs::remove(metrics());
  expect_refused({"run.json", "step 6 was committed"});
  fs::remove(status());
  fs::remove(metrics());
  expect_refused({"state_key", "steps were committed"});
  restore();
  write(key(), "0123\n");
  expect_refused(
      {"state_key", "is damaged", "step 6 of the run " + whole_.at(key()).substr(0, 32)});
  fs::remove(key());
  expect_refused({"holds step 6 of the run " + whole_.at(key()).substr(0, 32), "state_key"});
  restore();
  EXPECT_EQ(run_.train(on_drives(8)), 0) << "as it was";
}

// Changing to the host tier does not drop committed steps.
TEST_F(LostState, IsNotForgottenByTheHostTier) {
  expect_refused({"step 6 was committed", "offload.optimizer"}, base(8));
  EXPECT_EQ(run_.train(on_drives(8)), 0) << "as it was";
}

// With checkpoint.resume = "never" the user gives the committed steps up.
TEST_F(LostState, IsGivenUpWhereTheUserSaysSo) {
  fs::remove(state(0));
  expect_refused({"commit 6 was reached", "\"never\""});
  const std::string record = read(metrics());
  ASSERT_EQ(run_.train(joined(on_drives(3), {"--checkpoint.resume=never"})), 0);
  EXPECT_EQ(run_.steps("loss").size(), 3u);
  EXPECT_TRUE(read(metrics() + ".abandoned") == record) << "the record of the left course";
  EXPECT_EQ(run_.train(on_drives(4)), 0) << "and goes on from there";
  EXPECT_EQ(run_.steps("loss").size(), 4u);
}

// A checkpoint with the committed step makes the damage no loss.
TEST_F(LostState, IsNoLossWhereACheckpointHasIt) {
  ASSERT_EQ(run_.train(on_drives(7)), 0);  // and saves step 7
  for (const int drive : {0, 1}) fs::remove(state(drive));
  RunDriver unbroken("unbroken-state");
  ASSERT_EQ(unbroken.train(base(9)), 0);
  ASSERT_EQ(run_.train(on_drives(9)), 0);
  EXPECT_EQ(run_.steps("loss"), unbroken.steps("loss"));
  EXPECT_TRUE(run_.state() == unbroken.state());
}

// A damaged newest manifest makes the run use the version before, with a warning.
TEST_F(LostState, TheVersionBeforeIsUsedAndSaysSo) {
  for (const int drive : {0, 1}) put_at(state(drive), 200, "x");  // commits 0, 2, 4 and 6
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_.train(on_drives(6)), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("step 6 was committed, but is damaged"), std::string::npos) << text;
  EXPECT_NE(text.find("after step 5"), std::string::npos) << text;
  EXPECT_EQ(run_.steps("loss").size(), 6u);
}

// A run whose file on a drive is removed, replaced or moved with its directory stops with a
// checkpoint of its last step, from which the same command goes on with the same bits.
TEST(LostName, StopsTheRunWithEverythingSaved) {
  for (const std::string change : {"remove", "replace", "move"}) {
    RunDriver run("lost-name"), unbroken("unbroken-name");
    const std::string drive = run.directory() + "/drive";
    const std::string state = drive + "/rank-0000.state";
    const Arguments keys = {"--checkpoint.every_steps=0", "--offload.optimizer=nvme",
                            "--offload.nvme=[\"" + drive + "\"]"};
    Launched endless(run, 1, joined(base(1000000), keys));
    ASSERT_TRUE(endless.wait_for_steps(3)) << run.output();
    if (change == "move") {
      fs::rename(drive, drive + ".old");
    } else {
      fs::remove(state);
      if (change == "replace") write(state, "");
    }
    ASSERT_TRUE(endless.wait_for_end()) << run.output();
    EXPECT_EQ(endless.exit_code(), 1) << run.output();
    EXPECT_NE(run.output().find(state + ": was moved, removed or replaced under the run"),
              std::string::npos)
        << run.output();
    const auto steps = static_cast<int>(run.steps("loss").size()) + 2;
    ASSERT_EQ(run.train(joined(base(steps), keys)), 0) << change;
    ASSERT_EQ(unbroken.train(base(steps)), 0);
    EXPECT_EQ(run.steps("loss"), unbroken.steps("loss")) << change;
    EXPECT_TRUE(run.state() == unbroken.state()) << change;
  }
}

}  // namespace
}  // namespace longshore
