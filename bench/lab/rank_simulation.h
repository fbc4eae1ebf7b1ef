// simulate_ranks: the simulated duration of a step of many ranks that meet in collectives, up to
// the last rank's end. Only for schedules without drives, whose lanes are FIFO. Pure.
#pragma once

#include <cstdint>

#include "bench/lab/timed_step.h"

namespace longshore {

struct SimulatedRanks {
  int32_t ranks = 1;
  int32_t shard_ranks = 0;  // ranks of a gather; 0: all
  bool one_link = false;    // gathers and reductions of all ranks share one link
  double jitter = 0.0;      // every operation is longer by a random share up to this
  double slow_rank = 0.0;   // the last rank's compute is longer by this share
  uint32_t seed = 1;
};

double simulate_ranks(const TimedStep& step, const SimulatedRanks& ranks);

}  // namespace longshore
