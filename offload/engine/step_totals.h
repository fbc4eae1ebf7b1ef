// StepTotals: a step's scalars, summed over ranks in one collective after backward: loss, norms,
// requests to stop or save, and each rank's times. Plain values; used by the engine's thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/value_sums.h"
#include "offload/engine/unit_runner.h"
#include "offload/staging/rank_groups.h"

namespace longshore {

// One rank's times from the end of one step's backward to the end of the next.
struct RankTimes {
  double seconds = 0.0;   // total; lanes overlap
  double waited = 0.0;    // compute idle behind a collective: other ranks or network
  double updated = 0.0;   // busy time of the update lane
  double computed = 0.0;  // busy time of the compute lane

  auto values() { return std::tie(seconds, waited, updated, computed); }
};

struct StepTotals {
  LossSum loss = {};
  std::vector<double> unit_squares = {};  // of drained gradients, by unit
  std::vector<double> routers = {};       // UnitRunner::router_sums
  bool stop = false;                      // of any rank
  bool save = false;
  std::vector<RankTimes> times = {};  // by rank; a rank's own totals have only its entry
};

// The rank that the others wait for, and its busiest resource.
struct SlowestRank {
  Rank rank;
  std::string_view resource;  // "compute" or "optimizer"
  double seconds = 0.0;       // busy time of that resource
};
SlowestRank slowest_of(const std::vector<RankTimes>& times);

// Returns the totals of all ranks, on each of them; sums are in the order of ranks.
// HOST WAIT: the clip factor is needed before the update.
StepTotals sum_over_ranks(const RankGroups& groups, const StepTotals& mine);

// Returns the loss of an evaluation over all ranks, on each of them.
LossSum sum_over_ranks(const RankGroups& groups, const LossSum& mine);

}  // namespace longshore
