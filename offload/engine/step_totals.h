// StepTotals: the scalars of a step, summed over ranks in one collective after backward: loss,
// norms, requests to stop or to save, and where each rank's time went. Plain values; the engine's
// thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "offload/engine/unit_runner.h"
#include "offload/staging/rank_groups.h"

namespace longshore {

// Where one rank's time went, from the end of one step's backward to the end of the next.
struct RankTimes {
  double seconds = 0.0;   // all of it; lanes are busy at the same time
  double waited = 0.0;    // compute stood still for a collective: other ranks or the network
  double updated = 0.0;   // the update lane was busy
  double computed = 0.0;  // the compute lane was busy
};

struct StepTotals {
  LossSum loss = {};
  std::vector<double> unit_squares = {};  // of drained gradients, by unit
  std::vector<double> routers = {};       // UnitRunner::router_sums
  bool stop = false;                      // of any rank
  bool save = false;
  std::vector<RankTimes> times = {};  // by rank; in a rank's own totals: only its own
};

// The rank that the others wait for, and what it was busy with.
struct SlowestRank {
  Rank rank;
  std::string_view resource;  // "compute" or "optimizer"
  double seconds = 0.0;       // of that resource
};
SlowestRank slowest_of(const std::vector<RankTimes>& times);

// The totals of all ranks, on each of them; sums are in the order of ranks.
// HOST WAIT: the clip factor is needed before the update.
StepTotals sum_over_ranks(const RankGroups& groups, const StepTotals& mine);

// The loss of an evaluation over all ranks, on each of them.
LossSum sum_over_ranks(const RankGroups& groups, const LossSum& mine);

}  // namespace longshore
