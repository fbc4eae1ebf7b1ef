// RankProcess: a rank as a process of its own, for tests that kill it: this test binary in another
// mode (main.cpp), which runs collectives until something ends it.
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
  std::string behaviour = "train";  // train; stuck, once, fail, die: after the first step
  std::string output;               // a file for its words
};

// A rank that a launcher started: finds out which one it is from the launcher's variables.
inline constexpr const char* kLaunchedMode = "--as-launched";
int run_as_launched(const std::vector<std::string>& arguments);

// What the process does; returns its exit code. `arguments` are those that spawn() gives.
int run_as_rank(const std::vector<std::string>& arguments);

class RankProcess {
 public:
  explicit RankProcess(const RankProcessOptions& options);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();

  // Waits until it has been through its first operations.
  bool wait_until_ready(std::chrono::seconds limit) const;
  void send(int signal) const;
  // 128 + signal where one ended it; nullopt when it still runs at the end of the limit.
  std::optional<int> wait_for_end(std::chrono::steady_clock::time_point limit);
  std::string words() const;

 private:
  RankProcessOptions options_;
  pid_t pid_ = 0;
  std::optional<int> ended_;
};

}  // namespace longshore
