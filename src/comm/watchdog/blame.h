// Finds the rank that keeps an operation from finishing, from the heartbeats. Pure functions
// over the watchdog's data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks/process_identity.h"

namespace longshore {

// The reason why the run ends. The first one that reaches the store counts on all ranks.
struct FailureReason {
  int32_t culprit = -1;  // rank at fault; -1: unknown
  std::string cause;     // "rank 2 (host a, process 7) died"
};

// The latest information about one rank.
struct RankView {
  ProcessIdentity identity;
  RankHeartbeat heartbeat;
  double silent_seconds = 0.0;  // since its heartbeat last changed

  std::string text(int32_t rank) const;  // "rank 2 (host a, process 7)"
};

struct Board {
  int32_t self = 0;
  std::vector<RankView> ranks;                          // by rank
  std::map<std::string, std::vector<int32_t>> members;  // members of this rank's groups, by key
};

// Explains why operation `sequence` of the group has waited for `waited_seconds`. First blames a
// rank that has been silent for `silence_seconds`, then a disagreement, then a member that has not
// begun the operation, following the operations that such a member itself waits for.
FailureReason blame_for_delay(const Board& board, const std::string& group, int64_t sequence,
                              const std::string& operation, double waited_seconds,
                              double silence_seconds);

// Finds a rank whose operation differs from its group's first member at the same sequence.
std::optional<FailureReason> find_disagreement(const Board& board);

// Returns the rank that has been silent longest, if that is at least `silence_seconds`.
std::optional<int32_t> most_silent(const Board& board, double silence_seconds);
// Explains a failure by the silence of that rank.
FailureReason silence_of(const Board& board, int32_t rank);

std::string seconds_text(double seconds);

}  // namespace longshore
