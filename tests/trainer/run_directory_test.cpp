#include "trainer/directory/run_directory.h"
#include "base/child_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "comm/collectives/nccl_communicator.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

std::string text_of(const std::string& path) {
  return read_whole_file(path, kMiB);
}

class RunDirectoryTest : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const std::string path_ = directory_.file("runs/first");
};

// A second run in one directory is refused, and the process of the first is named.
TEST_F(RunDirectoryTest, RefusesASecondRunAndNamesTheProcess) {
  const RunDirectory first = RunDirectory::open(path_);
  try {
    RunDirectory::open(path_);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("process " + std::to_string(::getpid())), std::string::npos) << text;
    EXPECT_NE(text.find(path_), std::string::npos) << text;
  }
}

// Goal: a run does not fill the root of the file system, under whatever name.
TEST_F(RunDirectoryTest, RefusesTheRoot) {
  const std::string link = directory_.file("link");
  std::filesystem::create_directory_symlink("/", link);
  for (const std::string& path :
       {std::string("/"), std::string("//"), std::string("/tmp/.."), link}) {
    EXPECT_THROW(RunDirectory::open(path), ConfigError) << path;
  }
}

// A directory can be used again when its run ends.
TEST_F(RunDirectoryTest, IsFreeAgainWhenTheRunEnds) {
  {
    const RunDirectory first = RunDirectory::open(path_);
  }
  EXPECT_NO_THROW(RunDirectory::open(path_));
}

// A directory can be used again when its process is killed.
TEST_F(RunDirectoryTest, IsFreeAgainWhenTheProcessIsKilled) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunDirectory held = RunDirectory::open(path_);
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(RunDirectory::open(path_), ConfigError);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_NO_THROW(RunDirectory::open(path_));
  ::close(ready[0]);
  ::close(ready[1]);
}

// A run directory gets its documented files.
TEST_F(RunDirectoryTest, WritesItsFiles) {
  const RunDirectory run = RunDirectory::open(path_);
  run.write("config.toml", "[run]\n");
  run.write("plan.txt", "the plan\n");
  run.write("env.json", run_environment().dump());
  run.write_command({"longshore", "train", "my run.toml", "--run.seed=1"});
  EXPECT_EQ(text_of(run.file("config.toml")), "[run]\n");
  EXPECT_EQ(text_of(run.file("plan.txt")), "the plan\n");
  EXPECT_EQ(text_of(run.file("command.txt")), "longshore train 'my run.toml' --run.seed=1\n");
  const Json environment = Json::parse(text_of(run.file("env.json")));
  for (const char* key : {"libtorch", "build_id", "cores_allowed", "memory_total", "limits"}) {
    EXPECT_TRUE(environment.contains(key)) << key;
  }
  EXPECT_GE(environment["cores_allowed"], 1);
}

// run.json says how the run ended and what is saved.
TEST_F(RunDirectoryTest, StatusSaysHowTheRunEndedAndWhatIsSaved) {
  const RunDirectory run = RunDirectory::open(path_);
  run.write_status({});
  Json status = Json::parse(text_of(run.file("run.json")));
  EXPECT_EQ(status["status"], "running");
  EXPECT_TRUE(status["exit_code"].is_null());
  EXPECT_TRUE(status["saved_step"].is_null());
  EXPECT_EQ(status["pid"], ::getpid());

  RunStatus stopped;
  stopped.state = RunStatus::State::kStopped;
  stopped.exit_code = 143;
  stopped.step = Step(12);
  stopped.saved_step = Step(12);
  run.write_status(stopped);
  status = Json::parse(text_of(run.file("run.json")));
  EXPECT_EQ(status["status"], "stopped");
  EXPECT_EQ(status["exit_code"], 143);
  EXPECT_EQ(status["step"], 12);
  EXPECT_EQ(status["saved_step"], 12);
}

// A written status reads back, and other contents are ignored.
TEST_F(RunDirectoryTest, ReadsBackItsStatusAndNothingElse) {
  const RunDirectory run = RunDirectory::open(path_);
  EXPECT_FALSE(RunDirectory::read_status(path_));
  RunStatus status;
  status.step = Step(12);
  status.committed_step = Step(11);
  run.note_status(status);
  const std::optional<RunStatus> read = RunDirectory::read_status(path_);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->step, Step(12));
  EXPECT_EQ(read->committed_step, Step(11));
  EXPECT_FALSE(read->saved_step);
  for (const char* text : {"", "[]", "{}", "{\"status\": 3}", "{\"status\": \"odd\"}"}) {
    std::ofstream(run.file("run.json")) << text;
    EXPECT_FALSE(RunDirectory::read_status(path_)) << text;
  }
  std::ofstream(run.file("run.json"))
      << "{\"status\": \"running\", \"step\": -1, \"committed_step\": \"9\"}";
  EXPECT_EQ(RunDirectory::read_status(path_)->step, Step(0));
  EXPECT_FALSE(RunDirectory::read_status(path_)->committed_step);
}

// Temporary files of a killed process are removed; a user's files stay.
TEST_F(RunDirectoryTest, RemovesTemporaryFilesOfAKilledProcess) {
  std::filesystem::create_directories(path_);
  const std::string ours = path_ + "/run.json.tmp.0123456789abcdef";
  const std::string users = path_ + "/run.json.tmp.mine";
  std::ofstream(ours).put('x');
  std::ofstream(users).put('x');
  const RunDirectory run = RunDirectory::open(path_);
  EXPECT_FALSE(std::filesystem::exists(ours));
  EXPECT_TRUE(std::filesystem::exists(users));
}

// A quoted argument is read back by a shell.
TEST(ShellQuoted, IsReadBackByAShell) {
  for (const std::string argument :
       {"plain-1.0/x=y", "two words", "it's", "", "$HOME `id` \"q\" \\ ; *", "line\nfeed", "~"}) {
    FILE* shell = ::popen(("printf %s " + shell_quoted(argument)).c_str(), "r");
    ASSERT_NE(shell, nullptr);
    std::string read;
    for (int c; (c = std::fgetc(shell)) != EOF;) read += static_cast<char>(c);
    ASSERT_EQ(::pclose(shell), 0);
    EXPECT_EQ(read, argument);
  }
}

// The build's id and the process's memory are known.
TEST(RunEnvironment, KnowsTheBuildAndTheMemoryOfThisProcess) {
  EXPECT_GE(build_id().size(), 16u);
  EXPECT_EQ(build_id().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_GT(resident_bytes(), kMiB);
}

// Goal: a run's record says which NCCL added its gradients, and how; without CUDA there is none.
TEST(RunEnvironment, SaysHowNcclAdds) {
  const Json environment = run_environment();
  if (nccl_version().empty()) {
    EXPECT_FALSE(environment.contains("nccl"));
    return;
  }
  const Json& nccl = environment.at("nccl");
  EXPECT_EQ(std::ranges::count(nccl.at("version").get<std::string>(), '.'), 2);
  EXPECT_EQ(nccl.at("NCCL_ALGO"), "Ring");
  EXPECT_EQ(nccl.at("NCCL_NVLS_ENABLE"), "0");
}

}  // namespace
}  // namespace longshore
