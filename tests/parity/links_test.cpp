// Links and special files in a run's directory. Goal: a run changes nothing outside run.dir,
// data.cache and offload.nvme, and never blocks on a special file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns every file and directory below, with its bytes.
std::map<std::string, std::string> snapshot(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    files[entry.path()] = entry.is_regular_file() ? read(entry.path()) : "";
  }
  return files;
}

constexpr const char* kFiles[] = {"metrics.jsonl", "lock",     "run.json", "config.toml",
                                  "command.txt",   "env.json", "plan.txt", "plan.json",
                                  "data.json",     "save"};
constexpr const char* kDirectories[] = {"checkpoints", "best", "tensorboard"};

class Links : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(outside_);
    std::ofstream(outside_ + "/file") << "a user's\n";
    fs::copy(golden_directory("llama-tied"), outside_ + "/model");
    fs::create_directories(run_.directory());
    before_ = snapshot(outside_);
  }
  void TearDown() override { fs::remove_all(outside_); }

  // Runs with everything that a run may write: evaluations with the best, checkpoints, an export.
  int train() const {
    return run_.train(
        joined(RunDriver::golden_arguments("llama-tied"),
               {"--train.steps=3", "--checkpoint.every_steps=1", "--checkpoint.keep=1",
                "--checkpoint.export=end", "--eval.every_steps=1", "--eval.keep_best=true",
                "--data.eval=[\"" + golden_directory("llama-tied") + "/train.jsonl\"]",
                "--model.path=\"" + outside_ + "/model\""}));
  }
  std::string at(const std::string& name) const { return run_.directory() + "/" + name; }
  void expect_nothing_changed(const std::string& what) const {
    EXPECT_TRUE(snapshot(outside_) == before_) << what;
  }
  void clear() const { fs::remove_all(run_.directory()); }

  const RunDriver run_{"links"};
  const std::string outside_ = scratch_directory("outside");
  std::map<std::string, std::string> before_;
};

// A run does not write through links to files outside.
TEST_F(Links, ToFilesOutsideAreNotWrittenThrough) {
  for (const std::string name : kFiles) {
    for (const std::string target : {"/file", "/new"}) {
      clear();
      fs::create_directories(run_.directory());
      fs::create_symlink(outside_ + target, at(name));
      train();
      expect_nothing_changed(name + " -> " + target);
    }
  }
}

// Links to directories outside end the run before it starts.
TEST_F(Links, ToDirectoriesOutsideEndTheRunBeforeItStarts) {
  for (const std::string name : kDirectories) {
    clear();
    fs::create_directories(run_.directory());
    fs::create_directory_symlink(outside_ + "/model", at(name));
    testing::internal::CaptureStderr();
    const int exit_code = train();
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(exit_code, 2) << text;
    EXPECT_NE(text.find(at(name) + ": a symbolic link"), std::string::npos) << text;
    expect_nothing_changed(name);
  }
  clear();
  fs::create_directories(run_.directory());
  fs::create_directory_symlink(outside_ + "/model", at("hf"));
  EXPECT_EQ(train(), 0) << "the export is written next to it";
  EXPECT_TRUE(fs::exists(at("hf-2/config.json")));
  expect_nothing_changed("hf");
}

// run.dir itself may be a link, for example to another disk.
TEST_F(Links, TheRunsDirectoryMayBeOne) {
  const std::string disk = scratch_directory("disk");
  fs::create_directories(disk);
  clear();
  fs::create_directory_symlink(disk, run_.directory());
  EXPECT_EQ(train(), 0);
  EXPECT_TRUE(fs::exists(disk + "/hf/config.json"));
  expect_nothing_changed("a linked run.dir");
  fs::remove(run_.directory());
  fs::remove_all(disk);
}

// Pipes in place of files do not block the run.
TEST_F(Links, PipesAreNotWaitedFor) {
  for (const std::string name : kFiles) {
    clear();
    fs::create_directories(run_.directory());
    ASSERT_EQ(::mkfifo(at(name).c_str(), 0600), 0);
    const int exit_code = train();
    EXPECT_TRUE(exit_code == 0 || exit_code == 1 || exit_code == 2) << name << " " << exit_code;
  }
}

}  // namespace
}  // namespace longshore
