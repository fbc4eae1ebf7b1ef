// Whole runs of several processes with a stranger at the store's port, from before the store exists
// to the end. The run ends with the bits of an undisturbed one, and SIGTERM saves and ends it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/file.h"
#include "tests/comm/free_fixed_port.h"
#include "tests/comm/stranger.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

// The limit after which a run counts as hanging, far beyond a slow machine's time.
constexpr std::chrono::minutes kHangGuard{5};

Arguments some_steps() {
  return joined(RunDriver::golden_arguments("llama-tied"), {"--train.sequences_per_step=4"});
}

Arguments endless_steps() {
  return joined(some_steps(), {"--train.steps=1000000", "--checkpoint.every_steps=0"});
}

// Returns the exit code; a process that hangs is killed and gives nullopt.
std::optional<int> end_of(pid_t process) {
  const auto deadline = std::chrono::steady_clock::now() + kHangGuard;
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(-process, SIGKILL);
      ::waitpid(process, nullptr, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool wait_until(const std::function<bool()>& reached) {
  const auto deadline = std::chrono::steady_clock::now() + kHangGuard;
  while (!reached()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Returns the port that the launcher printed; 0 before that.
uint16_t launchers_port(const RunDriver& run) {
  const std::string text = run.output();
  const std::string words = "store at 127.0.0.1:";
  const size_t at = text.find(words);
  if (at == std::string::npos || text.find('\n', at) == std::string::npos) return 0;
  return static_cast<uint16_t>(std::stoi(text.substr(at + words.size())));
}

// ByHand: two ranks started by hand with the variables set, without a launcher.
class ByHand {
 public:
  ByHand(RunDriver& run, const Arguments& arguments) : port_(free_fixed_port()) {
    const std::string secret = run.directory() + "-secret";
    std::ofstream(secret) << "0123456789abcdef0123456789abcdef\n";
    ::chmod(secret.c_str(), 0600);
    stranger_ = std::make_unique<Stranger>(port_);
    for (const char* rank : {"1", "0"}) {
      run.before_exec([rank, port = std::to_string(port_)] {
        ::setenv("RANK", rank, 1);
        ::setenv("WORLD_SIZE", "2", 1);
        ::setenv("MASTER_ADDR", "127.0.0.1", 1);
        ::setenv("MASTER_PORT", port.c_str(), 1);
      });
      processes_.push_back(
          run.start_ranks(1, joined(arguments, {"--dist.secret_file=\"" + secret + "\""})));
    }
  }

  void signal(int number) const { ::kill(processes_.back(), number); }
  std::vector<std::optional<int>> ends() const {
    return {end_of(processes_[0]), end_of(processes_[1])};
  }
  const Stranger& stranger() const { return *stranger_; }

 private:
  uint16_t port_;
  std::unique_ptr<Stranger> stranger_;
  std::vector<pid_t> processes_;
};

// Goal: a stranger at the launcher's port changes no bit of a run.
TEST(StrangerAtTheStore, ALaunchedRunHasTheSameBits) {
  RunDriver quiet("quiet");
  ASSERT_EQ(quiet.train_ranks(2, some_steps()), 0) << quiet.output();
  RunDriver run("disturbed");
  const pid_t launcher = run.start_ranks(2, some_steps());
  ASSERT_TRUE(wait_until([&] { return launchers_port(run) != 0; })) << run.output();
  const Stranger stranger(launchers_port(run));
  EXPECT_EQ(end_of(launcher), 0) << run.output();
  EXPECT_GT(stranger.connections(), 10);
  EXPECT_EQ(run.steps("loss"), quiet.steps("loss"));
  EXPECT_TRUE(run.state() == quiet.state());
}

// Goal: with a stranger at the port, SIGTERM to the launcher saves and ends the run.
TEST(StrangerAtTheStore, ALaunchedRunHeedsSigterm) {
  RunDriver run("disturbed-stop");
  const pid_t launcher = run.start_ranks(2, endless_steps());
  ASSERT_TRUE(wait_until([&] { return launchers_port(run) != 0; })) << run.output();
  const Stranger stranger(launchers_port(run));
  ASSERT_TRUE(wait_until([&] { return run.metrics_lines() > 3; })) << run.output();
  ASSERT_EQ(::kill(launcher, SIGTERM), 0);
  EXPECT_EQ(end_of(launcher), 128 + SIGTERM) << run.output();
  EXPECT_FALSE(run.state().empty());
}

// Goal: a stranger at rank 0's port changes no bit of a run started by hand.
TEST(StrangerAtTheStore, ARunStartedByHandHasTheSameBits) {
  RunDriver quiet("quiet-by-hand");
  ASSERT_EQ(quiet.train_ranks(2, some_steps()), 0) << quiet.output();
  RunDriver run("by-hand");
  const ByHand ranks(run, some_steps());
  for (const auto& end : ranks.ends()) EXPECT_EQ(end, 0) << run.output();
  EXPECT_GT(ranks.stranger().connections(), 10);
  EXPECT_EQ(run.steps("loss"), quiet.steps("loss"));
  EXPECT_TRUE(run.state() == quiet.state());
}

// With a stranger at rank 0's port, SIGTERM saves and ends a run started by hand.
TEST(StrangerAtTheStore, ARunStartedByHandHeedsSigterm) {
  RunDriver run("by-hand-stop");
  const ByHand ranks(run, endless_steps());
  ASSERT_TRUE(wait_until([&] { return run.metrics_lines() > 3; })) << run.output();
  ranks.signal(SIGTERM);
  for (const auto& end : ranks.ends()) EXPECT_EQ(end, 128 + SIGTERM) << run.output();
  EXPECT_FALSE(run.state().empty());
}

// Goal: a process without the secret cannot take a rank's place.
TEST(StrangerAtTheStore, AnImpostorTakesNoPlace) {
  RunDriver run("impostor");
  const pid_t launcher = run.start_ranks(2, endless_steps());
  ASSERT_TRUE(wait_until([&] { return launchers_port(run) != 0; })) << run.output();
  RunDriver other("impostor-itself");
  other.before_exec([port = std::to_string(launchers_port(run))] {
    ::setenv("RANK", "1", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
  });
  EXPECT_EQ(end_of(other.start_ranks(1, endless_steps())), 8) << other.output();
  EXPECT_NE(other.output().find("does not belong to this run"), std::string::npos)
      << other.output();
  EXPECT_EQ(other.output().find("frame #"), std::string::npos) << other.output();
  ASSERT_TRUE(wait_until([&] { return run.metrics_lines() > 3; })) << run.output();
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(end_of(launcher), 128 + SIGTERM) << run.output();
}

// Goal: without a store the rank ends with one line and code 8, without a stack trace.
TEST(StrangerAtTheStore, ARankWithoutAStoreSaysSoInALine) {
  RunDriver run("no-store");
  run.before_exec([port = std::to_string(free_fixed_port())] {
    ::setenv("RANK", "1", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
  });
  EXPECT_EQ(end_of(run.start_ranks(1, joined(some_steps(), {"--dist.timeout=500ms"}))), 8);
  EXPECT_NE(run.output().find("cannot be reached"), std::string::npos) << run.output();
  for (const char* sign : {"frame #", "Exception raised", "[W", "[E"}) {
    EXPECT_EQ(run.output().find(sign), std::string::npos) << run.output();
  }
}

}  // namespace
}  // namespace longshore
