// Signals to a real process. Goal: any stop saves the work; output, exit code and run.json agree.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

Arguments endless() {
  return joined(RunDriver::golden_arguments("llama-tied"), {"--train.steps=1000000"});
}

// Waits for `lines` lines of metrics.jsonl; false if the process ended before.
bool wait_for_lines(const RunDriver& run, pid_t process, size_t lines) {
  for (int status = 0; run.metrics_lines() < lines;) {
    if (::waitpid(process, &status, WNOHANG) != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

int exit_code_of(pid_t process) {
  int status = 0;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

Json run_json(const RunDriver& run) {
  return read_json_file(run.directory() + "/run.json", JsonLimits{});
}

// SIGHUP (lost terminal), SIGUSR1 (batch system), SIGINT and SIGTERM save and stop the run.
TEST(Signals, ThatAskToStopSaveTheRunAndSaySo) {
  for (const int signal : {SIGHUP, SIGUSR1, SIGINT, SIGTERM}) {
    const RunDriver run("stopped-by-signal");
    const pid_t process = run.start_ranks(1, endless());
    ASSERT_TRUE(wait_for_lines(run, process, 4)) << run.output();
    ASSERT_EQ(::kill(process, signal), 0);
    EXPECT_EQ(exit_code_of(process), 128 + signal) << run.output();
    const Json last = run.metrics("step").back().at("step");
    EXPECT_EQ(run.metrics("checkpoint").back().at("step"), last);
    const std::string output = run.output();
    EXPECT_NE(output.find("then the run is saved"), std::string::npos) << output;
    EXPECT_NE(output.find("saved at step " + last.dump()), std::string::npos) << output;
    EXPECT_NE(output.find("; the last loss is "), std::string::npos) << output;
    const Json status = run_json(run);
    EXPECT_EQ(status.at("status"), "stopped");
    EXPECT_EQ(status.at("step"), last);
    EXPECT_EQ(status.at("saved_step"), last);
    EXPECT_EQ(status.at("exit_code"), 128 + signal);
    EXPECT_EQ(status.at("message"), "stopped by SIG" + std::string(::sigabbrev_np(signal)));
  }
}

// Goal: run.json is updated during a run, so a killed run does not stand at step 0; the next start
// reports that the last one ended without a status.
TEST(Signals, AKilledRunLeavesARecentStatus) {
  const RunDriver run("killed-status");
  const pid_t process = run.start_ranks(1, endless());
  ASSERT_TRUE(wait_for_lines(run, process, 3)) << run.output();
  while (run_json(run).at("step").get<int64_t>() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_EQ(::kill(-process, SIGKILL), 0);
  EXPECT_EQ(exit_code_of(process), 1000 + SIGKILL);
  EXPECT_EQ(run_json(run).at("status"), "running");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.train(joined(endless(), {"--train.steps=1"})), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("ended without a message"), std::string::npos) << text;
  EXPECT_NE(text.find("restarts at step 0"), std::string::npos) << text;
  EXPECT_EQ(run_json(run).at("status"), "done");
}

// SIGUSR2 saves a checkpoint, and the run continues.
TEST(Signals, ARequestToSaveIsMetWhileTheRunGoesOn) {
  const RunDriver run("save-request");
  const pid_t process = run.start_ranks(1, endless());
  ASSERT_TRUE(wait_for_lines(run, process, 3)) << run.output();
  ASSERT_EQ(::kill(process, SIGUSR2), 0);
  while (run.metrics("checkpoint").empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const size_t saved = run.metrics_lines();
  ASSERT_TRUE(wait_for_lines(run, process, saved + 3)) << "it ended";
  EXPECT_EQ(run.metrics("checkpoint").size(), 1u) << "once for each request";
  ASSERT_EQ(::kill(process, SIGTERM), 0);
  EXPECT_EQ(exit_code_of(process), 128 + SIGTERM);
}

// Returns the processes that the launcher started.
std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) +
                     "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

// With two ranks on drives, a stop signal to one stops both, both restart, and the run ends like an
// unbroken one. If one rank's drive lost its state and no checkpoint has it, both are refused.
TEST(Signals, ToOneOfTwoRanksOnDrivesStopBoth) {
  const auto until = [](int64_t steps) {
    return joined(RunDriver::golden_arguments("llama-tied"),
                  {"--train.steps=" + std::to_string(steps), "--train.max_grad_norm=0.9",
                   "--train.sequences_per_step=4"});
  };
  const RunDriver unbroken("two-unbroken"), run("two-on-drives");
  const std::string drive = run.directory() + "/drive";
  const Arguments drives = {"--offload.optimizer=nvme", "--offload.nvme=[\"" + drive + "\"]"};
  const pid_t launcher = run.start_ranks(2, joined(until(1000000), drives));
  ASSERT_TRUE(wait_for_lines(run, launcher, 9)) << run.output();
  const std::vector<pid_t> ranks = children_of(launcher);
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[1], SIGTERM), 0);
  EXPECT_EQ(exit_code_of(launcher), 128 + SIGTERM) << run.output();
  const int64_t stopped = run.metrics("step").back().at("step").get<int64_t>();
  EXPECT_EQ(run.metrics("checkpoint").back().at("step"), stopped);
  const Arguments to_the_end = joined(until(stopped + 5), drives);
  std::filesystem::rename(run.directory() + "/checkpoints", run.directory() + "/aside");
  std::filesystem::rename(drive + "/rank-0001.state", drive + "/away");
  EXPECT_EQ(run.train_ranks(2, to_the_end), 6) << run.output();
  std::filesystem::rename(drive + "/away", drive + "/rank-0001.state");
  std::filesystem::rename(run.directory() + "/aside", run.directory() + "/checkpoints");
  ASSERT_EQ(run.train_ranks(2, to_the_end), 0) << run.output();
  ASSERT_EQ(unbroken.train_ranks(2, until(stopped + 5)), 0) << unbroken.output();
  EXPECT_EQ(run.steps("loss"), unbroken.steps("loss"));
  EXPECT_TRUE(run.state() == unbroken.state());
}

}  // namespace
}  // namespace longshore
