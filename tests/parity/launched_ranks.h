// Launched: a launcher with its ranks as real processes, which can be sent signals. Test code.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/parity/run_driver.h"

namespace longshore {

inline std::vector<pid_t> children_of(pid_t parent) {
  const std::string id = std::to_string(parent);
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

// Returns the rank of a process from its environment; -1 after its end.
inline int rank_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ", std::ios::binary);
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable.starts_with("RANK=")) return std::stoi(variable.substr(5));
  }
  return -1;
}

// Launched: a launcher with its ranks; its destructor ends them all.
class Launched {
 public:
  // The limit after which a run counts as hanging, far beyond a slow machine's time.
  static constexpr std::chrono::minutes kHangGuard{5};

  Launched(const RunDriver& run, int ranks, const std::vector<std::string>& list)
      : run_(run), launcher_(run.start_ranks(ranks, list)) {}
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() {
    if (!ended_) ::kill(-launcher_, SIGKILL);
    for (pid_t rank : ranks_) ::kill(rank, SIGKILL);
    if (!ended_) ::waitpid(launcher_, nullptr, 0);
  }

  // Waits until the run has written `more` further step lines.
  bool wait_for_steps(size_t more) {
    const auto count = [this] { return run_.metrics_lines(); };
    const size_t target = count() + more;
    const auto deadline = std::chrono::steady_clock::now() + kHangGuard;
    while (count() < target && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ranks_ = children_of(launcher_);
    return count() >= target;
  }

  // Sends the signal to one rank's process.
  void signal(int rank, int number) const {
    for (pid_t process : ranks_) {
      if (rank_of(process) == rank) ::kill(process, number);
    }
  }

  // Returns false if it hangs. exit_code() is then the launcher's exit code.
  bool wait_for_end() {
    const auto deadline = std::chrono::steady_clock::now() + kHangGuard;
    int status = 0;
    while (::waitpid(launcher_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ended_ = true;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }
  int exit_code() const { return exit_code_; }

 private:
  const RunDriver& run_;
  pid_t launcher_;
  std::vector<pid_t> ranks_;
  bool ended_ = false;
  int exit_code_ = -1;
};

}  // namespace longshore
