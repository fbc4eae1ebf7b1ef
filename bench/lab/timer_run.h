// TimerRun: runs a TimedStep on one or several ranks with the real executor, one thread per track,
// and the real stage ring with tiny slots; every operation sleeps. Ranks are threads of this
// process; a collective begins when all of its ranks have come. Main thread.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "bench/lab/timed_step.h"

namespace longshore {

struct TimerRanks {
  int32_t ranks = 1;
  int32_t shard_ranks = 0;  // ranks of a gather; 0: all
  // Whether all ranks share the drives; durations then hold while all ranks are served, and fewer
  // are served faster. Else every rank has its own drives.
  bool share_drives = false;
  // By rank: compute time relative to the rank with the most; empty: all equal.
  std::vector<double> compute = {};
};

class TimerRun {
 public:
  TimerRun(const TimedStep* step, TimerRanks ranks);  // `step` must outlive it
  ~TimerRun();

  // Runs one step on all ranks; returns seconds from the first rank's start to the last one's end.
  double step_seconds();

 private:
  class Rank;
  class Meeting;
  class Drive;

  Meeting& gather_of(size_t rank);
  void abandon();

  TimerRanks how_;
  std::vector<std::unique_ptr<Meeting>> gathers_;  // by group
  // For all ranks: a reduction, the step's totals, its commit.
  std::array<std::unique_ptr<Meeting>, 3> meetings_;
  std::vector<std::unique_ptr<Drive>> reading_, writing_;  // one per rank, or one
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace longshore
