// log.wandb: a run starts scripts/follow_metrics, here with a stand-in for the package wandb.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Trains two steps with a package wandb of this text, which notes what it is told in `calls`.
class Tracked {
 public:
  explicit Tracked(const std::string& package) : path_(scratch_directory("tracker")) {
    fs::create_directories(path_ + "/python");
    std::ofstream(path_ + "/python/wandb.py") << package;
    std::ofstream rows(path_ + "/rows.jsonl");
    for (int i = 0; i < 8; ++i) rows << "{\"text\": \"row of text " << i << "\"}\n";
    rows.close();
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", path_ + "/model"}).exit_code, 0);
    ::setenv("PYTHONPATH", (path_ + "/python").c_str(), 1);
    ::setenv("TRACKER_TEST_CALLS", calls_file().c_str(), 1);
    std::ofstream(path_ + "/run.toml").close();
    ended_ = run_command({"train", path_ + "/run.toml", "--model.path=" + path_ + "/model",
                          "--data.train=" + path_ + "/rows.jsonl", "--data.cache=" + path_ + "/c",
                          "--data.max_tokens=48", "--train.steps=2", "--device.kind=cpu",
                          "--device.threads=1", "--offload.threads=1", "--checkpoint.export=never",
                          "--run.dir=" + path_ + "/mine", "--log.wandb=llama"});
    ::unsetenv("PYTHONPATH");
    ::unsetenv("TRACKER_TEST_CALLS");
  }
  Tracked(const Tracked&) = delete;
  Tracked& operator=(const Tracked&) = delete;
  ~Tracked() { fs::remove_all(path_); }

  const Ended& ended() const { return ended_; }
  std::string calls() const { return text_of(calls_file()); }

 private:
  std::string calls_file() const { return path_ + "/calls"; }

  std::string path_;
  Ended ended_;
};

constexpr const char* kStandIn = R"(
import os
def note(*call):
    with open(os.environ["TRACKER_TEST_CALLS"], "a") as file:
        print(*call, file=file)
class Run:
    def log(self, values, step): note("step", step, "train/loss" in values)
    def finish(self, exit_code): note("finish", exit_code)
def init(project, name, config):
    note("init", project, name, config["train.steps"])
    return Run()
)";

// Goal: the tracker has every step and the end of the run when the run's process has ended.
TEST(Tracker, HasTheWholeRunWhenItEnds) {
  const Tracked tracked(kStandIn);
  EXPECT_EQ(tracked.ended().exit_code, 0) << tracked.ended().err;
  EXPECT_EQ(tracked.calls(), "init llama mine 2\nstep 1 True\nstep 2 True\nfinish 0\n")
      << tracked.ended().err;
}

// Goal: a run without the package is trained all the same, and the warning has the command.
TEST(Tracker, IsAWarningWhereThePackageIsMissing) {
  const Tracked tracked("raise ImportError('no such package here')\n");
  EXPECT_EQ(tracked.ended().exit_code, 0) << tracked.ended().err;
  for (const char* part : {"log.wandb: it ended with exit code 1", "no such package here",
                           "pip install wandb", "--to wandb --project=llama"}) {
    EXPECT_NE(tracked.ended().err.find(part), std::string::npos) << part << tracked.ended().err;
  }
}

}  // namespace
}  // namespace longshore
