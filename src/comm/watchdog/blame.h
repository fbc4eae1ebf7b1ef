// Blame: who keeps an operation from finishing, judged from the heartbeats. Pure functions over
// what the watchdog knows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks/process_identity.h"
#include "comm/ranks/rank_heartbeat.h"

namespace longshore {

// Why the run ends. The first one that reaches the store counts, on all ranks.
struct FailureReason {
  int32_t culprit = -1;  // -1: nobody can be named
  std::string cause;     // "rank 2 (host a, process 7) died"
};

// What is known of one rank.
struct RankView {
  ProcessIdentity identity;
  RankHeartbeat heartbeat;
  double silent_seconds = 0.0;  // since its heartbeat changed

  std::string text(int32_t rank) const;  // "rank 2 (host a, process 7)"
};

struct Board {
  int32_t self = 0;
  std::vector<RankView> ranks;                          // by rank
  std::map<std::string, std::vector<int32_t>> members;  // of this rank's groups, by key
};

// The operation `sequence` of the group has waited too long, `waited_seconds`. A rank that has been
// silent for `silence_seconds` is the culprit before any other; else one that has not come to the
// operation, or to one that a member waits for in another group in its turn.
FailureReason blame_for_delay(const Board& board, const std::string& group, int64_t sequence,
                              const std::string& operation, double waited_seconds,
                              double silence_seconds);

// A rank that is in another operation than the first of its group, at the same place of the order.
std::optional<FailureReason> find_disagreement(const Board& board);

// The rank that has been silent longest, and for at least so long.
std::optional<int32_t> most_silent(const Board& board, double silence_seconds);

std::string seconds_text(double seconds);

}  // namespace longshore
