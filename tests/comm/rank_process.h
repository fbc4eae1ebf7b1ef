// RankProcess: a rank as a process of its own, for tests that kill it. It runs this test binary in
// another mode (main.cpp), with collectives until something ends it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longshore {

inline constexpr const char* kRankMode = "--as-rank";

struct RankProcessOptions {
  int32_t rank = 0;
  int32_t size = 1;
  uint16_t port = 0;
  bool agent_store = true;
  int64_t timeout_ms = 60'000;
  // "train"; after the first step: "stuck", "once", "fail", "die", or "count", which says each
  // step.
  std::string behaviour = "train";
  std::string output;  // path of the file for its output
};

// A rank started in this mode finds its number in the launcher's variables.
inline constexpr const char* kLaunchedMode = "--as-launched";
// This behaviour writes the process's number to DIRECTORY/RANK, and never reaches the store.
inline constexpr const char* kUnmet = "unmet";
int run_as_launched(const std::vector<std::string>& arguments);

// Runs the rank in its process with the arguments that spawn() gives; returns its exit code.
int run_as_rank(const std::vector<std::string>& arguments);

class RankProcess {
 public:
  explicit RankProcess(const RankProcessOptions& options);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();

  // Waits until the rank has run its first operations; false after `limit`.
  bool wait_until_ready(std::chrono::seconds limit) const;
  void send(int signal) const;
  // Returns the exit code, 128 + signal for a killed process, or nullopt if it runs at `limit`.
  std::optional<int> wait_for_end(std::chrono::steady_clock::time_point limit);
  std::string words() const;

 private:
  RankProcessOptions options_;
  pid_t pid_ = 0;
  std::optional<int> ended_;
};

}  // namespace longshore
