// simulate_ranks: a step of many ranks that meet in collectives, on paper: when the last of them is
// done. For schedules without drives, whose lanes each run one operation after the other.
// Deterministic. Pure, any thread.
#pragma once

#include <cstdint>

#include "bench/lab/timed_step.h"

namespace longshore {

struct SimulatedRanks {
  int32_t ranks = 1;
  int32_t shard_ranks = 0;  // that gather from each other; 0: all
  bool one_link = false;    // gathers and reductions, of all ranks, pass the same link
  double jitter = 0.0;      // every operation takes up to so much of itself longer, by chance
  double slow_rank = 0.0;   // the last rank's computation takes so much of itself longer
  uint32_t seed = 1;
};

double simulate_ranks(const TimedStep& step, const SimulatedRanks& ranks);

}  // namespace longshore
